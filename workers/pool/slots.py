"""Which workers a cluster should have now: one in each slot that there is room for, while nodes come and go."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

Share = Mapping[str, float]
"""What one worker reserves: Ray's name of one resource -> at most one of it."""

MOST_CRASHES = 4
"""After so many worker crashes in a row, with nothing reported in between, a slot is abandoned."""


def name_worker(pool: str, slot: int) -> str:
    """Return a name for the next worker of a slot; never used again, so that a late call of an old worker is
    recognised.
    """
    return f"{pool}-{slot}-{uuid.uuid4().hex[:8]}"


def slot_of(worker: str) -> int:
    """Return the slot of a worker that `name_worker` named."""
    return int(worker.split("-")[1])


def share_of(resources: Mapping[str, float], workers: int | None) -> Share:
    """Return the resources that each of so many workers reserves on a cluster with these; None workers get a whole
    device each.

    Of GPUs where there are any, and then nothing else: nodes may have many GPUs and few cores. Else of cores.
    """
    name = "GPU" if resources.get("GPU") else "CPU"
    return {name: fraction(resources.get(name, 0), workers or 1)}


def fraction(devices: float, workers: int) -> float:
    """Devices per worker: a whole one where there are enough, else a fraction of one, as many workers on each."""
    if devices >= workers or not devices:
        return 1.0
    return int(1000 / math.ceil(workers / devices)) / 1000


def room_on(nodes: Iterable[Mapping[str, float]], share: Share) -> int:
    """Workers that fit on nodes with these resources, each on one device and none across two."""
    [(name, amount)] = share.items()
    return sum(int(node.get(name, 0)) for node in nodes) * int(1 / amount)


@final
@dataclass(kw_only=True)
class Slots:
    """Assigns slots, numbered from 0. A slot has one worker at a time, and another one after a crash.

    A slot is abandoned when `MOST_CRASHES` workers in a row crashed in it before they reported anything. Workers that
    stopped with their machine do not count: machines may join and leave at any time.
    """

    most: int | None
    """None: as many as there is room for."""
    room: Callable[[], int]
    """Workers that fit on the nodes that are there now."""
    closed: bool = False
    """No new worker is needed; the present ones are ending."""
    exhausted: bool = field(init=False, default=False)
    """Closed because every slot that there is room for was abandoned."""
    _held: dict[int, bool] = field(init=False, default_factory=dict[int, bool])
    """Slot -> whether its worker runs; False while it waits to be placed on a machine."""
    _crashes: Counter[int] = field(init=False, default_factory=Counter[int])
    """Slot -> crashes since the last report from it."""

    def take(self) -> int | None:
        """Return a slot for a new worker; None while there is no room, or if no worker is needed."""
        if self.closed:
            return None
        room = self.room()
        wanted = room if self.most is None else min(self.most, room)
        abandoned = {slot for slot, crashes in self._crashes.items() if crashes >= MOST_CRASHES}
        if len(self._held) + len(abandoned) < wanted:
            slot = next(slot for slot in range(wanted) if slot not in self._held and slot not in abandoned)
            self._held[slot] = False
            return slot
        self.closed = self.exhausted = bool(abandoned and wanted and not self._held)
        return None

    def note_start(self, slot: int) -> None:
        """Note that the slot's worker was placed on a machine and runs."""
        self._held[slot] = True

    def note_report(self, slot: int) -> None:
        """Note that the slot's worker made progress."""
        del self._crashes[slot]

    def note_crash(self, slot: int) -> None:
        """Note that the slot's worker crashed and its machine did not."""
        self._crashes[slot] += 1
        del self._held[slot]

    def note_departure(self, slot: int) -> None:
        """Note that the slot's worker stopped with its machine."""
        del self._held[slot]

    def note_end(self, slot: int) -> None:
        """Note that the slot's worker heard of the study's end, as every other worker will."""
        self.closed = True
        del self._held[slot]

    @property
    def finished(self) -> bool:
        """Whether no worker runs and no new one is needed; workers that are not placed yet can be cancelled."""
        return self.closed and not any(self._held.values())
