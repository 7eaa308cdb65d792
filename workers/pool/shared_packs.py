"""Packs in which several studies have lanes side by side.

Each study has a worker of its own for each device, with its own lease, exchanges, journal and
checkpoints: it reports and stores what it would alone. The workers of a device share packs of one
structure: whichever has the device trains the lanes of all, and puts each report where its study's
worker takes it from. Numbers do not change: a lane's depend on its trial alone.
"""

from __future__ import annotations

import logging
import queue
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from spaces.plugins import active
from spaces.records import Report, Trial, TrialStart
from workers.engine.checkpoints import Archive, Snapshot
from workers.engine.machine.memory import out_of_memory
from workers.engine.machine.side_by_side import together
from workers.engine.pack import Pack
from workers.engine.pack.lanes import LaneTrial
from workers.pool.turns import StudyTurns, Undivided

_LOG = logging.getLogger("graft.worker")


class _Key(NamedTuple):
    """The properties that the lanes of a pack share."""

    structure: str
    bundles: tuple[str, ...]
    """Digests of the plug-ins from outside: names mean the same, whichever worker trains."""
    group: Hashable
    """The value of `StudyDevice.group`."""


@final
@dataclass(kw_only=True, eq=False)
class SharedPack:
    """A pack, and the studies that have lanes in it."""

    pack: Pack
    key: _Key
    is_open: bool = True
    """True if other studies may join."""
    free_lane_seconds: float = 0.0
    """Seconds that free lanes have cost at this width."""
    limit: int | None = None
    """Most lanes of all studies since memory ran out."""
    members: dict[int, StudyLanes] = field(default_factory=dict[int, "StudyLanes"])
    """Study -> its lanes."""


SharedPacks = list[SharedPack]
"""The packs of one device. Its users hold the device: by a turn, or because nothing shares it."""


@final
@dataclass(frozen=True, kw_only=True)
class StudyDevice:
    """A device for the worker of one study."""

    study: int = 0
    turns: StudyTurns = field(default_factory=Undivided)
    packs: SharedPacks = field(default_factory=list[SharedPack])
    group: Callable[[], Hashable] = lambda: None
    """Studies of equal groups may have lanes in one pack."""
    is_beside: bool = False
    """True if other workers of the study train on the same device, each a structure of its own."""

    def open(self, pack: Pack, archive: Archive | None) -> StudyLanes:
        """Return the study's lanes in a new pack, which others may join."""
        shared = SharedPack(pack=pack, key=self.key(pack.structure))
        self.packs.append(shared)
        return StudyLanes(self, shared, archive)

    def join(self, structure: str, archive: Archive | None) -> StudyLanes | None:
        """Return the study's lanes, none yet, in another's pack of this structure, or None."""
        key = self.key(structure)
        shared = next((pack for pack in self.packs if pack.key == key and pack.is_open), None)
        return StudyLanes(self, shared, archive) if shared else None

    @property
    def structures(self) -> tuple[str, ...]:
        """Structures of packs that this study could join; a hint, as others may hold the device."""
        packs = [pack for pack in [*self.packs] if pack.is_open]
        return tuple(pack.key.structure for pack in packs if pack.key == self.key(pack.key.structure))

    def key(self, structure: str) -> _Key:
        """Return the key of packs that this study's trials of a structure can train in now."""
        return _Key(structure, tuple(bundle.digest for bundle in active.current().bundles), self.group())


@final
class StudyLanes:
    """The lanes that one study has in a pack.

    `has_reports` and `take_reports` may be called at any time, all else while the device is held.
    """

    def __init__(self, device: StudyDevice, shared: SharedPack, archive: Archive | None) -> None:
        self._device = device
        self._archive = archive
        self._reports = queue.SimpleQueue[Report]()
        self._counts = 0, 0
        """Counts of the packs that these lanes were in before."""
        self.shared = shared
        shared.members[device.study] = self

    @property
    def pack(self) -> Pack:
        """The pack, with the lanes of all studies."""
        return self.shared.pack

    @property
    def trials(self) -> Sequence[LaneTrial]:
        """The trials of this study that are in training."""
        return self.pack.trials_of(self._device.study)

    @property
    def starts(self) -> tuple[TrialStart, ...]:
        """The starts of these trials."""
        return tuple(TrialStart(running.number, running.fence) for running in self.trials)

    @property
    def usable_lanes(self) -> int:
        """Lanes that this study could have without those of others."""
        return self.pack.width - self.busy + len(self.trials)

    @property
    def busy(self) -> int:
        """Lanes of all studies that have a trial."""
        return self.pack.width - self.pack.free

    def users(self) -> Mapping[int, int]:
        """Study -> its lanes that have a trial."""
        return Counter(lane.study for lane in self.pack.lanes if lane)

    def has_reports(self) -> bool:
        """Return True if a trial of this study has reported."""
        return not self._reports.empty()

    def take_reports(self) -> list[Report]:
        """Return the reports of this study's trials since the last call, in order."""
        return [self._reports.get() for _ in range(self._reports.qsize())]

    def take_counts(self) -> tuple[int, int]:
        """Return this study's steps and lane room since the last call (`Pack.take_counts`)."""
        (steps, room), self._counts = self._counts, (0, 0)
        more_steps, more_room = self.pack.take_counts(self._device.study)
        return steps + more_steps, room + more_room

    def snapshot(self) -> Snapshot | None:
        """Take a snapshot of this study's trials, as `Pack.snapshot` does."""
        return self.pack.snapshot(self._device.study)

    def fill(self, trials: Iterable[Trial]) -> None:
        """Start trials of this study in free lanes."""
        self.pack.fill(trials, self._device.study, self._archive)

    def release(self, numbers: Iterable[int]) -> None:
        """Free the lanes of these trials of this study."""
        self.pack.release(numbers, self._device.study)

    def train(self, most: int) -> None:
        """Train the lanes of all studies, as `Pack.train`, and deliver reports to their studies.

        A step that fails in company is made again by each study alone, from the same states: an
        error then meets only the study whose lanes are its cause.
        """
        try:
            with together(self.pack.device):
                reports = self.pack.train_studies(most)
        except Exception as error:
            if len(self.shared.members) == 1 or out_of_memory(error):
                raise
            _LOG.warning("a step of %d studies together failed; they train apart: %s", len(self.shared.members), error)
            for member in [*self.shared.members.values()]:
                member.part(is_open=False)
            return
        for study, report in reports:
            self.shared.members[study].deliver(report)

    def deliver(self, report: Report) -> None:
        """Note a report of this study's trial."""
        self._reports.put(report)

    def drop(self, trials: Iterable[LaneTrial]) -> None:
        """Free the lanes of these trials of any study: their workers' next offers lack them."""
        for running in trials:
            self.pack.release([running.number], running.study)

    def regroup(self) -> None:
        """Leave a pack of studies that are no longer of this one's group, with all lanes."""
        key = self._device.key(self.pack.structure)
        if key != self.shared.key:
            self.part(is_open=self.shared.is_open)
            self.shared.key = key

    def part(self, *, is_open: bool) -> None:
        """Move these lanes into a pack of their own, which others may join if it is open."""
        if len(self.shared.members) > 1:
            self._counts = self.take_counts()
            pack = self.pack.split_off(self._device.study)
            shared = SharedPack(pack=pack, key=self._device.key(pack.structure), limit=self.shared.limit)
            self.leave()
            self.shared = shared
            shared.members[self._device.study] = self
            self._device.packs.append(shared)
        self.shared.is_open = is_open

    def leave(self) -> None:
        """Free all lanes of this study; the pack goes with its last study."""
        self.release([running.number for running in self.trials])
        del self.shared.members[self._device.study]
        if not self.shared.members:
            self._device.packs.remove(self.shared)


def choose_width(width: int, needed: int, free_lane_seconds: float, price: float) -> int:
    """Return the new width of a pack that needs `needed` lanes.

    It widens if they do not fit. It narrows if at most half of its lanes are needed, or if
    `free_lane_seconds`, the cost of free lanes at this width, reaches `price`, the seconds that a
    new width costs. How long the pack trains on is unknown; waiting until the two are equal costs
    at most twice the least possible (the ski-rental rule; Karlin et al., "Competitive Snoopy
    Caching", 1988). Narrowing at half takes few widths.
    """
    return needed if needed > width or 2 * needed <= width or free_lane_seconds >= price else width
