"""A worker's heartbeat, from a thread of its own: a long compilation or a long step does not stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import final

BEAT_SECONDS = 10.0
SELF_STOP_SECONDS = 45.0
"""Less than a lease: who cannot reach the controller stops training before others are given its trials."""


@final
class Heartbeat:
    """Renews a lease every ten seconds while it is open, and knows whether the worker may go on."""

    def __init__(self, renew: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """`renew` says whether the lease is still the worker's."""
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
        """Whether the lease is the worker's. When no renewal sent in the last 45 seconds was accepted, asks first.

        Raises what `renew` raises where nobody answers.
        """
        if not self._lost and self._clock() > self._sent + SELF_STOP_SECONDS:
            self.beat()
        return not self._lost

    def beat(self) -> None:
        """Renew now; a lease that is lost stays lost."""
        with self._turn:
            sent = self._clock()
            if self._lost or not self._renew():
                self._lost = True
            else:
                self._sent = sent

    def _beat_on(self) -> None:
        while not self._closed.wait(BEAT_SECONDS) and not self._lost:
            with suppress(Exception):  # nobody answers: that is no renewal, and told to who trains by the exchange
                self.beat()
