"""Which study of the service may fill how many lanes now: what the controllers say, shared out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from search.steering.sharing import Demand, Limit, Share, share_lanes
from spaces.records import Directives, Offer, Progress
from storage import QueueEntry

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
    held: dict[str, int] = field(default_factory=dict[str, int])
    """Worker -> lanes that train its trials."""
    is_short: bool = False
    """Whether it could not fill the lanes that an empty worker was offered for it."""

    @property
    def lanes(self) -> int:
        return sum(self.held.values())

    def demand(self) -> Demand:
        entry = self.entry
        return Demand(
            study=entry.study_id,
            # A study whose next trials wait for others may have one to give before it is asked for more.
            asks=min(self.left, self.lanes + 1) if self.is_short else self.left,
            weight=entry.weight,
            priority=entry.priority,
            owner=entry.owner,
            max_lanes=entry.max_lanes,
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a study has, what it is due, and why it is not due more."""

    lanes: int
    share: float
    reason: str


@final
class LaneShares:
    """Decides how many of a worker's free lanes a study may fill. Safe to call from several threads."""

    def __init__(self, lanes: int, owner_lanes: int | None) -> None:
        """`lanes`: of all workers; `owner_lanes`: the most that the studies of one owner have together."""
        self._lanes = lanes
        self._owner_lanes = owner_lanes
        self._turn = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._shares: dict[int, Share] = {}

    def add(self, entry: QueueEntry) -> None:
        """Run a study. Until its controller says more, it asks for a lane for each planned trial."""
        with self._turn:
            self._members[entry.study_id] = _Member(entry=entry, left=entry.trials)
            self._share_out()

    def update(self, entry: QueueEntry) -> None:
        """Run a study on other terms, if it is run."""
        with self._turn:
            if entry.study_id in self._members:
                self._members[entry.study_id].entry = entry
                self._share_out()

    def remove(self, study: int) -> None:
        """The study is not run any more."""
        with self._turn:
            self._members.pop(study, None)
            self._share_out()

    def allow(self, study: int, offer: Offer) -> int:
        """How many of the offered lanes the study may fill.

        One that is alone and has no limit fills them all, also where its packs get wider than was counted on.
        """
        with self._turn:
            member = self._members[study]
            member.held[offer.worker] = len(offer.holds)
            if len(self._members) == 1 and member.entry.max_lanes is None and self._owner_lanes is None:
                return offer.lanes
            return max(0, min(offer.lanes, self._shares[study].most - member.lanes))

    def note(self, study: int, offer: Offer, directives: Directives, progress: Progress) -> None:
        """What became of an offer, as it was allowed: the lanes that the study has now, and what it asks for."""
        with self._turn:
            member = self._members[study]
            if directives.done or directives.lease_lost:
                member.held.pop(offer.worker, None)
            else:
                kept = {one.number for one in offer.holds} - set(directives.stop)
                member.held[offer.worker] = len(kept) + len(directives.start)
                if offer.structure is None and offer.lanes:
                    member.is_short = len(directives.start) < offer.lanes
            member.left = progress.planned - progress.ended
            self._share_out()

    def part(self, study: int) -> float:
        """The part of the devices' time that is due to a study, in lanes.

        A study that is due no lane any more, but trains what it began, counts as one lane.
        """
        with self._turn:
            share = self._shares.get(study)
            return max(share.lanes, 1.0) if share else 1.0

    def priority(self, study: int) -> int:
        """The class of a study that is run; that of any other counts as 0."""
        with self._turn:
            member = self._members.get(study)
            return member.entry.priority if member else 0

    def standing(self, study: int) -> Standing | None:
        """Where a study stands; None if it is not run."""
        with self._turn:
            share = self._shares.get(study)
            if share is None:
                return None
            return Standing(lanes=self._members[study].lanes, share=share.lanes, reason=_REASONS[share.limit])

    def _share_out(self) -> None:
        demands = [member.demand() for member in self._members.values()]
        self._shares = share_lanes(demands, self._lanes, self._owner_lanes)
