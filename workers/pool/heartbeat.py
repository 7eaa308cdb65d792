"""A worker's heartbeat, sent from a thread of its own, so that a long compilation or a long step does not delay it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

BEAT_SECONDS = 10.0
SELF_STOP_SECONDS = 45.0
"""Less than a lease lasts: a worker that cannot reach the controller stops before its trials are given to others."""


@final
class Heartbeat:
    """Renews the worker's lease every ten seconds while it is open, and reports whether the lease is still held."""

    def __init__(self, renew: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`renew` returns whether the lease is still held; it raises if the controller does not answer."""
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
        """Return whether the lease is held. If no renewal of the last 45 seconds was accepted, one is tried first.

        Raises what `renew` raises if the controller does not answer.
        """
        if not self._lost and self._clock() > self._sent + SELF_STOP_SECONDS:
            self.beat()
        return not self._lost

    def beat(self) -> None:
        """Renew now; a lease that is lost stays lost."""
        with self._turn:
            # The lease is as old as the request, not as the answer: that may have been on its way for a long time.
            sent = self._clock()
            if self._lost or not self._renew():
                self._lost = True
            else:
                self._sent = sent

    def _beat_on(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and not self._lost:
            with suppress(Exception):  # no answer is a missed renewal; the next exchange raises what is wrong
                self.beat()
