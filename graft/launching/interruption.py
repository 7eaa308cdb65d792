"""Ctrl-C and SIGTERM while a study runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interruption:
    """Turns the first Ctrl-C (or SIGTERM) into a request to stop, and the second into a KeyboardInterrupt."""

    def __init__(self, announce: Callable[[], None]) -> None:
        """`announce` is called at the first one."""
        self.requested = False
        self._announce = announce
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._announce()
