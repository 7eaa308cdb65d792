"""Which workers a cluster should have now: one in each slot that there is room for, while nodes come and go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

Share = Mapping[str, float]
"""What one worker reserves: Ray's name of one resource -> at most one of it."""

MOST_DEATHS = 4
"""A slot whose workers died so often, one after the other with nothing reported in between, is given up."""


def share_of(resources: Mapping[str, float], workers: int | None) -> Share:
    """What each of so many workers reserves on a cluster with these resources; None: a whole device each.

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
    """Hands out slots: numbers from 0, each held by one worker at a time, and again by another when that has died.

    A slot is given up when `MOST_DEATHS` workers in a row died in it before they reported anything. Workers that went
    down with their machine do not count: machines may come and go as often as they like.
    """

    most: int | None
    """None: as many as there is room for."""
    room: Callable[[], int]
    """Workers that fit on the nodes that are there now."""
    closed: bool = False
    """No worker is needed any more, besides those that are on their way home."""
    exhausted: bool = field(init=False, default=False)
    """Closed because every slot that there is room for is given up."""
    _held: dict[int, bool] = field(init=False, default_factory=dict[int, bool])
    """Slot -> whether its worker has begun, rather than waits for a place."""
    _deaths: Counter[int] = field(init=False, default_factory=Counter[int])
    """Slot -> deaths since something was reported from it."""

    def take(self) -> int | None:
        """A slot for one more worker; None while there is no room, or once none is needed."""
        if self.closed:
            return None
        room = self.room()
        wanted = room if self.most is None else min(self.most, room)
        given_up = {slot for slot, deaths in self._deaths.items() if deaths >= MOST_DEATHS}
        if len(self._held) + len(given_up) < wanted:
            slot = next(slot for slot in range(wanted) if slot not in self._held and slot not in given_up)
            self._held[slot] = False
            return slot
        self.closed = self.exhausted = bool(given_up and wanted and not self._held)
        return None

    def began(self, slot: int) -> None:
        """Its worker is at work."""
        self._held[slot] = True

    def note_report(self, slot: int) -> None:
        """Its worker got something done."""
        del self._deaths[slot]

    def note_crash(self, slot: int) -> None:
        """Its worker died, and its machine lives."""
        self._deaths[slot] += 1
        del self._held[slot]

    def note_departure(self, slot: int) -> None:
        """Its worker went down with its machine."""
        del self._held[slot]

    def note_end(self, slot: int) -> None:
        """Its worker was sent home, as every other will be."""
        self.closed = True
        del self._held[slot]

    @property
    def over(self) -> bool:
        """Nobody works, and nobody is needed: who still waits for a place need not come."""
        return self.closed and not any(self._held.values())
