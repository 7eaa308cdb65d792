"""Packs of several studies train on the same devices in turn, each study for the part of the time that is its share.

One pack at a time has a device, for some optimizer steps. The next is that of the study that has had the least time, of
all devices together, counted in parts of its share (start-time fair queueing: Goyal, Vin and Cheng, "Start-time Fair
Queuing", IEEE/ACM Transactions on Networking 5(5), 1997). So no device is idle while a pack could train, and a study
that comes is served at once. A pack in which several studies have lanes is trained in the turns of each of them, so
that it has the time of all; it counts for each by its lanes, in whosever turn it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, final

CREDIT_SECONDS = 2.0
"""Of a study that could not use its part of the time, as while its reports are recorded: so much is made up for."""
QUANTUM_SECONDS = 0.1
"""A pack keeps its device so much longer than it would have to: to change packs costs what caches hold."""

IsMine = Callable[[], bool]
"""Whether the turn goes on: no pack that waits is to have the device by now."""

Users = Callable[[], Mapping[int, int]]
"""Study -> lanes that are trained in a turn."""


class StudyTurns(Protocol):
    """The turns that one study has on one device."""

    def training(self, needless: Callable[[], bool], users: Users) -> AbstractContextManager[IsMine]:
        """Wait for the device to train a pack, and have it inside; `users` is asked as the time is counted.

        One that turns out needless while it is waited for, as where another study has trained the same pack, is none:
        `IsMine` is False from the start.
        """
        ...

    def briefly(self) -> AbstractContextManager[None]:
        """Hold the device for something short, before all that train and after their next steps."""
        ...

    def wake(self) -> None:
        """Announce a change that may make the training turns of other studies needless."""
        ...


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
    """Who uses a device, and who waits for it."""

    is_busy: bool = False
    training: set[int] = field(default_factory=set[int])
    """Studies that wait to train."""
    brief: list[int] = field(default_factory=list[int])
    """Studies that wait for something short, the first first."""


@final
class Turns:
    """The turns of all devices. Safe to call from several threads, one for each study and device."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._devices: dict[int, _Device] = {}
        self._shares: dict[int, Callable[[], float]] = {}
        self._spent: dict[int, float] = {}
        """Study -> seconds of any device that it has had, each divided by its share then."""
        self._least = 0.0
        """What a study that comes starts with: what the one had whose training turn began last."""

    def of(self, device: int, study: int, share: Callable[[], float]) -> StudyTurns:
        """Return the turns of a study on a device; `share`: of the study, above 0, asked as its time is counted."""
        with self._changed:
            self._shares[study] = share
            return _TurnsOfOne(self, self._devices.setdefault(device, _Device()), study)

    def wake(self) -> None:
        """Let those that wait check again whether their turns are needless."""
        with self._changed:
            self._changed.notify_all()

    def take(self, device: _Device, study: int, needless: Callable[[], bool]) -> bool:
        """Wait for a device to train on it; False if that is needless, and then it is not taken."""
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
        """Wait for a device for something short."""
        with self._changed:
            self._admit(study)
            device.brief.append(study)
            while device.is_busy or device.brief[0] != study:
                self._changed.wait()
            device.brief.pop(0)
            device.is_busy = True

    def count(self, device: _Device, study: int, seconds: float, users: Mapping[int, int]) -> bool:
        """Count so much time in a turn of a study for those that have lanes; whether it may keep the device."""
        with self._changed:
            lanes = sum(users.values())
            for user, own in users.items():
                spent = seconds * own / lanes / self._shares[user]()
                self._spent[user] = self._spent.get(user, self._least) + spent
            earned = self._spent[study] - QUANTUM_SECONDS / self._shares[study]()
            return not device.brief and all(earned <= self._spent[one] for one in device.training)

    def give_back(self, device: _Device) -> None:
        """Give the device to the next study that waits."""
        with self._changed:
            device.is_busy = False
            self._changed.notify_all()

    def now(self) -> float:
        """Seconds, by the clock."""
        return self._clock()

    def _admit(self, study: int) -> None:
        """Forget what it could not use but for its credit."""
        earliest = self._least - CREDIT_SECONDS / self._shares[study]()
        self._spent[study] = max(self._spent.get(study, self._least), earliest)

    def _is_next(self, device: _Device, study: int) -> bool:
        return not device.brief and min(device.training, key=lambda one: (self._spent[one], one)) == study


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
        """Count the time inside the block for the studies that use the device, and give the device back at the end."""
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
