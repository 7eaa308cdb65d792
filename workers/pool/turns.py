"""Packs of several studies take turns on the same devices, by the studies' shares of the time.

One pack at a time has a device, for some optimizer steps. The next is that of the study that has
had the least time, of all devices together, divided by its share (start-time fair queueing: Goyal,
Vin and Cheng, "Start-time Fair Queuing", IEEE/ACM Transactions on Networking 5(5), 1997). So no
device is idle while a pack could train, and a new study is served at once. A pack of several
studies trains in the turns of each, and counts for each by its lanes, whosever turn it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, final

CREDIT_SECONDS = 2.0
"""Unused time that a study can make up for, as while its reports are recorded."""
QUANTUM_SECONDS = 0.1
"""A pack keeps its device so much longer than it must: a change costs what caches hold."""

IsMine = Callable[[], bool]
"""Returns True while the turn goes on: no waiting pack should have the device yet."""

Users = Callable[[], Mapping[int, int]]
"""Study -> lanes that are trained in a turn."""


class StudyTurns(Protocol):
    """The turns that one study has on one device."""

    def training(self, needless: Callable[[], bool], users: Users) -> AbstractContextManager[IsMine]:
        """Wait for the device to train a pack, and hold it; `users` is asked when time is counted.

        If the turn becomes needless meanwhile, as when another study has trained the pack, it is
        not taken: `IsMine` is False from the start.
        """
        ...

    def briefly(self) -> AbstractContextManager[None]:
        """Hold the device for a short task, before all that train, after their next steps."""
        ...

    def wake(self) -> None:
        """Announce a change that may make the training turns of other studies needless."""


@final
class Undivided:
    """The turns of a study that has its device to itself."""

    def training(self, needless: Callable[[], bool], users: Users) -> AbstractContextManager[IsMine]:
        return nullcontext(lambda: True)

    def briefly(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wake(self) -> None:
        pass


@final
@dataclass
class _Device:
    """The use of a device, and the studies that wait for it."""

    is_busy: bool = False
    training: set[int] = field(default_factory=set[int])
    """Studies that wait to train."""
    brief: list[int] = field(default_factory=list[int])
    """Studies that wait for a short task, in order."""


@final
class Turns:
    """The turns of all devices, for several threads: one for each study and device."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._devices: dict[int, _Device] = {}
        self._shares: dict[int, Callable[[], float]] = {}
        self._spent: dict[int, float] = {}
        """Study -> its seconds of any device, each divided by its share then."""
        self._least = 0.0
        """A new study's start: the time of the study whose training turn began last."""

    def of(self, device: int, study: int, share: Callable[[], float]) -> StudyTurns:
        """Return a study's turns on a device; `share`, above 0, is asked when time is counted."""
        with self._changed:
            self._shares[study] = share
            return _TurnsOfOne(self, self._devices.setdefault(device, _Device()), study)

    def wake(self) -> None:
        """Let the waiting studies check again whether their turns are needless."""
        with self._changed:
            self._changed.notify_all()

    def take(self, device: _Device, study: int, needless: Callable[[], bool]) -> bool:
        """Wait for a device to train on it; return False, without it, if that is needless."""
        with self._changed:
            self._admit(study)
            device.training.add(study)
            try:
                while not (is_needless := needless()) and (device.is_busy or not self._is_next(device, study)):
                    self._changed.wait()
            finally:
                device.training.remove(study)
                self._changed.notify_all()  # the others waited for this one, too
            if is_needless:
                return False
            device.is_busy = True
            self._least = self._spent[study]
            return True

    def take_briefly(self, device: _Device, study: int) -> None:
        """Wait for a device for a short task."""
        with self._changed:
            self._admit(study)
            device.brief.append(study)
            while device.is_busy or device.brief[0] != study:
                self._changed.wait()
            device.brief.pop(0)
            device.is_busy = True

    def count(self, device: _Device, study: int, seconds: float, users: Mapping[int, int]) -> bool:
        """Count time in a turn for those that have lanes; return True if it may go on."""
        with self._changed:
            lanes = sum(users.values())
            for user, count in users.items():
                spent = seconds * count / lanes / self._shares[user]()
                self._spent[user] = self._spent.get(user, self._least) + spent
            earned = self._spent[study] - QUANTUM_SECONDS / self._shares[study]()
            return not device.brief and all(earned <= self._spent[waiting] for waiting in device.training)

    def give_back(self, device: _Device) -> None:
        """Give the device to the next study that waits."""
        with self._changed:
            device.is_busy = False
            self._changed.notify_all()

    def now(self) -> float:
        """Return the clock's seconds."""
        return self._clock()

    def _admit(self, study: int) -> None:
        """Forget time that the study could not use, but for its credit."""
        earliest = self._least - CREDIT_SECONDS / self._shares[study]()
        self._spent[study] = max(self._spent.get(study, self._least), earliest)

    def _is_next(self, device: _Device, study: int) -> bool:
        return not device.brief and min(device.training, key=lambda waiting: (self._spent[waiting], waiting)) == study


@final
@dataclass(frozen=True)
class _TurnsOfOne:
    """The turns of a study on a device."""

    turns: Turns
    device: _Device
    study: int

    @contextmanager
    def training(self, needless: Callable[[], bool], users: Users) -> Generator[IsMine]:
        if not self.turns.take(self.device, self.study, needless):
            yield lambda: False
            return
        with self._counted(users) as is_mine:
            yield is_mine

    @contextmanager
    def briefly(self) -> Generator[None]:
        self.turns.take_briefly(self.device, self.study)
        with self._counted(lambda: {self.study: 1}):
            yield

    def wake(self) -> None:
        self.turns.wake()

    @contextmanager
    def _counted(self, users: Users) -> Generator[IsMine]:
        """Count the block's time for the studies that have lanes, then give the device back."""
        counted = self.turns.now()

        def is_mine() -> bool:
            nonlocal counted
            before, counted = counted, self.turns.now()
            return self.turns.count(self.device, self.study, counted - before, users() or {self.study: 1})

        try:
            yield is_mine
        finally:
            is_mine()
            self.turns.give_back(self.device)
