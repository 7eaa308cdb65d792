"""Packs of several studies train on the same devices in turn, each study for the part of the time that is its share.

One pack at a time has a device, for some optimizer steps. The next is that of the study that has had the least time, of
all devices together, counted in parts of its share (start-time fair queueing: Goyal, Vin and Cheng, "Start-time Fair
Queuing", IEEE/ACM Transactions on Networking 5(5), 1997). So no device is idle while a pack could train, and a study
that comes is served at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

CREDIT_SECONDS = 2.0
"""Of a study that could not use its part of the time, as while its reports are recorded: so much is made up for."""
QUANTUM_SECONDS = 0.1
"""A pack keeps its device so much longer than it would have to: to change packs costs what caches hold."""

IsMine = Callable[[], bool]
"""Whether the turn goes on: no pack that waits is to have the device by now."""


@contextmanager
def undivided() -> Generator[IsMine]:
    """The turn of a pack that has its device to itself."""
    yield lambda: True


@final
class Turns:
    """The turns of all devices. Safe to call from several threads, one for each study and device."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: dict[int, set[int]] = {}
        """Device -> the studies whose packs wait for it."""
        self._busy: set[int] = set()
        """Devices."""
        self._spent: dict[int, float] = {}
        """Study -> seconds of any device that it has had, each divided by its share then."""
        self._least = 0.0
        """What a study that comes starts with: what the one had whose turn began last."""

    @contextmanager
    def turn(self, device: int, study: int, share: Callable[[], float]) -> Generator[IsMine]:
        """Wait for a device and have it inside; `share`: of the study, above 0, asked as its time is counted."""
        waiting = self._waiting.setdefault(device, set())
        with self._changed:
            earliest = self._least - CREDIT_SECONDS / share()
            self._spent[study] = max(self._spent.get(study, self._least), earliest)
            waiting.add(study)
            while device in self._busy or min(waiting, key=lambda one: (self._spent[one], one)) != study:
                self._changed.wait()
            waiting.remove(study)
            self._busy.add(device)
            self._least = self._spent[study]
        counted = self._clock()

        def is_mine() -> bool:
            nonlocal counted
            with self._changed:
                now, part = self._clock(), share()
                self._spent[study] += (now - counted) / part
                counted = now
                earned = self._spent[study] - QUANTUM_SECONDS / part
                return all(earned <= self._spent[one] for one in waiting)

        try:
            yield is_mine
        finally:
            is_mine()
            with self._changed:
                self._busy.remove(device)
                self._changed.notify_all()
