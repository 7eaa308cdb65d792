"""Ctrl-C, SIGTERM and a closed terminal while a study runs."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Turns the first signal into a request to stop; a second Ctrl-C or SIGTERM leaves at once."""

    def __init__(self, announce: Callable[[], None], leave: Callable[[], None]) -> None:
        """Keep the two functions that are called at the first and the second signal.

        `announce` runs in a thread, since the interrupted code may be writing, too. `leave` runs in
        the signal's handler and should not return.
        """
        self.requested = False
        self._leave = leave
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a handler may put into it

        def announce_each() -> None:
            while self._asked.get():
                announce()

        self._announcer = threading.Thread(target=announce_each, daemon=True)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._announcer.start()
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._asked.put(False)
        self._announcer.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _forget_terminal()
        if not self.requested:
            self.requested = True
            self._asked.put(True)
        elif number != signal.SIGHUP:  # a shell sends it again, a service manager after SIGTERM
            self._leave()


def _forget_terminal() -> None:
    """Redirect the closed terminal to os.devnull, since writing to it raises an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            # A closed terminal fails isatty, but is still a console or a pseudo-terminal by its
            # number (Linux, devices.txt).
            if os.isatty(stream) or os.major(os.fstat(stream).st_rdev) in (4, 5, *range(136, 144)):
                os.dup2(nowhere, stream)
    os.close(nowhere)
