"""A worker's heartbeat, from a thread of its own, which no long compilation or step delays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

BEAT_SECONDS = 10.0
SELF_STOP_SECONDS = 45.0
"""Less than a lease: a worker without its controller stops before its trials go to others."""


@final
class Heartbeat:
    """Renews the worker's lease every ten seconds, and reports whether the lease is still held."""

    def __init__(self, renew: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`renew` returns whether the lease is held, and raises if there is no answer."""
        self._renew = renew
        self._clock = clock
        self._sent = clock()
        self._lost = False
        self._closed = threading.Event()
        self._turn = threading.Lock()

    def __enter__(self) -> Heartbeat:
        threading.Thread(target=self._beat_on, daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()

    def alive(self) -> bool:
        """Return True if the lease is held; after 45 seconds without an answer, beat first."""
        if not self._lost and self._clock() > self._sent + SELF_STOP_SECONDS:
            self.beat()
        return not self._lost

    def beat(self) -> None:
        """Renew now; a lease that is lost stays lost."""
        with self._turn:
            # The lease is as old as the request, not as the answer, which may have taken long.
            sent = self._clock()
            if self._lost or not self._renew():
                self._lost = True
            else:
                self._sent = sent

    def _beat_on(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and not self._lost:
            with suppress(Exception):  # a missed renewal; the next exchange raises the error
                self.beat()
