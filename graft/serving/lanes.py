"""The lanes of the service shared out among its studies, by the demands of their controllers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from search.steering.sharing import Demand, Limit, Share, share_lanes
from spaces.progress import Progress
from spaces.records import Directives, Offer
from storage import QueueEntry
from workers.pool.slots import slot_of

_REASONS: Mapping[Limit, str] = {
    "asks": "",
    "max_lanes": "has the lanes that it may have at most",
    "owner": "its owner has the lanes that a person may have at most",
    "lanes": "shares the lanes with other studies",
    "priority": "waits for lanes: studies of a higher class have them all",
}


@dataclass(kw_only=True)
class _Member:
    """A study that is being run."""

    entry: QueueEntry
    left: int
    """Trials that have not ended."""
    held: dict[int, int] = field(default_factory=dict[int, int])
    """Slot -> lanes that train the study's trials there."""
    room: dict[int, int] = field(default_factory=dict[int, int])
    """Slot -> free lanes of the study's worker there, by its last offer."""
    credit: float = 0.0
    """Lane-seconds that rounding to whole lanes took from the study; below 0 if it gave some."""
    is_short: bool = False
    """True if the study could not fill the lanes of an empty worker."""

    @property
    def lanes(self) -> int:
        return sum(self.held.values())

    def demand(self, lanes: int) -> Demand:
        """Return the study's demand when so many lanes are shared out."""
        entry, left = self.entry, min(self.left, lanes)
        return Demand(
            study=entry.study_id,
            # A study whose next trials wait for others may still start one more trial.
            asks=min(left, self.lanes + 1) if self.is_short else left,
            weight=entry.weight,
            priority=entry.priority,
            owner=entry.owner,
            max_lanes=entry.max_lanes,
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A study's lanes, its fair share in lanes, and the reason if it is not due more."""

    lanes: int
    share: float
    reason: str


@final
class LaneShares:
    """Decides how many of a worker's free lanes a study may fill. It is safe for threads."""

    def __init__(
        self,
        slots: Iterable[int],
        width: int,
        owner_lanes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Share out the `width` lanes of each slot's worker, at most `owner_lanes` to one owner."""
        self._slots = frozenset(slots)
        self._width = width
        self._owner_lanes = owner_lanes
        self._clock = clock
        self._counted = clock()
        self._turn = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._demands: list[Demand] = []
        self._shares: dict[int, Share] = {}

    @property
    def lanes(self) -> int:
        """The number of lanes that are shared out."""
        return len(self._slots) * self._width

    def use_slots(self, slots: Iterable[int]) -> None:
        """Share out the lanes of these slots from now on, as devices join and leave."""
        with self._turn:
            self._count_time()
            self._slots, self._demands = frozenset(slots), []
            self._share_out()

    def add(self, entry: QueueEntry) -> None:
        """Run a study. Until its controller reports, it asks for a lane for each planned trial."""
        with self._turn:
            self._count_time()
            self._members[entry.study_id] = _Member(entry=entry, left=entry.trials)
            self._share_out()

    def update(self, entry: QueueEntry) -> None:
        """Run a study on other terms, if it is run."""
        with self._turn:
            if entry.study_id in self._members:
                self._count_time()
                self._members[entry.study_id].entry = entry
                self._share_out()

    def remove(self, study: int) -> None:
        """Remove a study that is no longer run."""
        with self._turn:
            self._count_time()
            self._members.pop(study, None)
            self._share_out()

    def allow(self, study: int, offer: Offer) -> int:
        """Return how many of the offered lanes the study may fill; all if alone without limit."""
        with self._turn:
            self._count_time()
            member, slot = self._members[study], slot_of(offer.worker)
            member.held[slot] = len(offer.holds)
            due = self._due(study)
            if due is None:
                return offer.lanes
            # Each new lane goes to the emptiest slot. If all were in one pack, each would be slow,
            # and the other devices idle.
            slots = self._slots | {slot}  # the slot may have left just now
            loads = {
                index: sum(other.held.get(index, 0) for other in self._members.values()) for index in sorted(slots)
            }
            room = {index: member.room.get(index, due) for index in loads} | {slot: due}
            placed = 0
            for _ in range(due):
                fewest = min((index for index in loads if room[index]), key=lambda index: (loads[index], index != slot))
                loads[fewest] += 1
                room[fewest] -= 1
                placed += fewest == slot
            allowed = min(offer.lanes, placed)
            member.room[slot] = offer.lanes - allowed
            return allowed

    def surplus(self, study: int) -> int:
        """Return how many lanes a study fills beyond its share, by the last offer of each worker."""
        with self._turn:
            return max(0, -(self._due(study) or 0))

    def _due(self, study: int) -> int | None:
        """Return how many more lanes a study is due, below 0 if too many; None if alone without limit."""
        member = self._members[study]
        if len(self._members) == 1 and member.entry.max_lanes is None and self._owner_lanes is None:
            return None
        due = self._shares[study].rounded(up=member.credit >= 0) - member.lanes
        if self._owner_lanes is not None:
            of_owner = (other.lanes for other in self._members.values() if other.entry.owner == member.entry.owner)
            due = min(due, self._owner_lanes - sum(of_owner))
        return due

    def note(self, study: int, offer: Offer, directives: Directives, progress: Progress) -> None:
        """Note the outcome of an allowed offer: the lanes that the study has and those it wants."""
        with self._turn:
            self._count_time()
            member, slot = self._members[study], slot_of(offer.worker)
            if directives.done or directives.lease_lost:
                member.held.pop(slot, None)
                member.room.pop(slot, None)
            else:
                kept = {start.number for start in offer.holds} - set(directives.stop)
                member.held[slot] = len(kept) + len(directives.start)
                is_short = len(directives.start) < offer.lanes
                if is_short:
                    member.room[slot] = 0
                if offer.structure is None and offer.lanes:
                    member.is_short = is_short
            member.left = progress.planned - progress.ended
            self._share_out()

    def lose(self, study: int, worker: str) -> None:
        """Take away the lanes of a worker that is gone; its slot has room again when another one offers it."""
        with self._turn:
            if study in self._members:
                self._count_time()
                self._members[study].held.pop(slot_of(worker), None)
                self._members[study].room[slot_of(worker)] = 0

    def part(self, study: int) -> float:
        """Return the part of the devices' time that is due to a study, at least one lane.

        A study that is due no lane any more still trains the trials that it began.
        """
        with self._turn:
            share = self._shares.get(study)
            return max(share.lanes, 1.0) if share else 1.0

    def priority(self, study: int) -> int:
        """Return the priority class of a study that is run, or 0 for any other study."""
        with self._turn:
            member = self._members.get(study)
            return member.entry.priority if member else 0

    def standing(self, study: int) -> Standing | None:
        """Return a study's lanes, share and limit; None if it is not running."""
        with self._turn:
            share = self._shares.get(study)
            if share is None:
                return None
            reason = _REASONS[share.limit] if self._slots else "waits for a device: the cluster has none now"
            return Standing(lanes=self._members[study].lanes, share=share.lanes, reason=reason)

    def _count_time(self) -> None:
        """Count the lane-seconds that rounding gave or took since the last call, before a change.

        A difference of a lane or more, as of a study that came late or ends, is not made up for.
        """
        before, self._counted = self._counted, self._clock()
        for study, member in self._members.items():
            missing = self._shares[study].lanes - member.lanes
            if abs(missing) < 1:
                member.credit += missing * (self._counted - before)

    def _share_out(self) -> None:
        demands = [member.demand(self.lanes) for member in self._members.values()]
        if demands != self._demands:
            self._demands = demands
            self._shares = share_lanes(demands, self.lanes, self._owner_lanes)
