"""A worker: one device, lanes in one pack at a time, steered by `exchange`.

The loop is the same wherever it runs. A lane freed by completion, divergence or a stopping policy is filled with the
next trial of the same structure while its neighbours go on; when a structure has no trials left, the pack narrows with
its last lanes, and then the worker asks for another structure. When memory runs out, the half of the lanes that is
furthest goes on; the others, which its next offer does not hold, go back in the queue. While the controller does not
answer, as when its database is away, the lanes train on. Workers of other studies may have lanes in the same pack
(`shared_packs`), and train it in their turns.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from spaces.errors import PluginError
from spaces.records import Checkpoint, Directives, Offer, Report, Trial, TrialStart
from workers.engine.checkpoints import Archive, Snapshot
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.machine.process import use_device
from workers.engine.pack import CHECK_STEPS, Pack
from workers.engine.pack.lanes import NARROWEST
from workers.pool.checkpoint_timer import CheckpointTimer
from workers.pool.exchanger import JOURNAL, Exchange, Exchanger, numbers_in
from workers.pool.heartbeat import Heartbeat
from workers.pool.shared_packs import StudyDevice, StudyLanes

EXCHANGE_SECONDS = 2.0
"""A worker speaks to the controller at least this often, so that a stop is heard."""

LEAST_ROUNDS = 4
"""Packs are not wider than they begin when fewer trials wait: one worker would hold what others could be training."""


_log = logging.getLogger("graft.worker")


class Finder(Protocol):
    """Finds the number of lanes with which a structure trains fastest."""

    def find(self, trial: Trial) -> int | None:
        """Return the most lanes of a pack of this trial's structure; None while that is not known."""
        ...

    def add_training_time(self, seconds: float) -> None:
        """Add seconds of training; the time that may be spent on the search grows with them."""
        ...


@dataclass(kw_only=True)
class Worker:
    """Trains what the controller gives it until the controller says that it is done."""

    name: str
    exchange: Exchange
    device: str = "cpu"
    width: int
    """Lanes of a pack to begin with, and by how many it may widen at once: the workers of a queue share it evenly."""
    finder: Finder | None = None
    """Says how wide packs may become while many trials wait; None: not wider than they begin."""
    renew: Callable[[], bool] = lambda: True
    """Says that the worker lives, and whether its lease is still its own; called from other threads."""
    archive: Archive | None = None
    """Where checkpoints go; None: nowhere."""
    save_seconds: float = math.inf
    """Seconds between checkpoints at most; none but those that the controller asks for, unless it is told."""
    log: str = ""
    """Where what it says of itself can be read."""
    idle: Callable[[], None] = field(default=lambda: time.sleep(0.2))
    """Called when there is nothing to train yet, because others still run what might come back."""
    share: StudyDevice = field(default_factory=StudyDevice)
    """The device as its study has it, whose packs and turns other studies may share."""
    lanes: StudyLanes | None = None
    """Those that it has in a pack."""
    _most: int = field(init=False)
    """Most lanes of the pack."""
    _sample: Trial = field(init=False)
    """A trial of the pack's structure."""
    _limits: dict[str, int] = field(init=False, default_factory=dict[str, int])
    """Structure -> lanes that are left of it since memory ran out."""
    _rounds: float = field(init=False, default=0.0)
    """How often the trials that wait would fill all lanes at work."""
    _timer: CheckpointTimer = field(init=False)
    """Says when the next checkpoint is due."""
    _counted: tuple[int, int] = field(init=False, default=(0, 0))
    """Steps and room, as in `Offer`, of lanes that it had since the last one and has left."""

    def __post_init__(self) -> None:
        self._most = self.width
        self._timer = CheckpointTimer(self.save_seconds)

    def run(self) -> bool:
        """Exchange and train until done; False if the lease ran out, and everything that it held is dropped."""
        try:
            return self._run()
        finally:
            with self.share.turns.briefly():
                self._leave()

    def _run(self) -> bool:
        """Train until the study is done, or the lease is lost; `run` gives the lanes back afterwards."""
        reports: list[Report] = []
        saves = False
        with Exchanger(self.exchange) as exchanger, Heartbeat(self.renew) as heartbeat:
            while heartbeat.alive():
                offer = self._offer(reports, saves=saves)
                sent = time.monotonic()
                exchanger.send(reports, offer)
                directives, reports = self._await_answer(exchanger, heartbeat)
                if offer.saved:  # lanes wait while the controller writes, but not longer than this
                    self._timer.add_cost(min(time.monotonic() - sent, EXCHANGE_SECONDS))
                if directives is None or directives.lease_lost:
                    break
                if directives.done:
                    return True
                self._rounds = directives.rounds
                with self.share.turns.briefly():
                    reports += self._apply(directives)
                    saves = self._is_to_save(asked=directives.save)
                if not (reports or directives.save or saves):
                    reports = self._train()
                if self.lanes is None and offer.structure is None and not reports:
                    self.idle()
        return False

    def _await_answer(self, exchanger: Exchanger, heartbeat: Heartbeat) -> tuple[Directives | None, list[Report]]:
        """Return the controller's answer, and what the lanes report until it comes; None if the lease ran out
        meanwhile.
        """
        journal, kept = list[Report](), 0
        directives = exchanger.answer(EXCHANGE_SECONDS)
        while directives is None and heartbeat.alive():
            # Lanes train on while the controller is away, until what they would have to report outgrows the journal.
            is_full = kept >= JOURNAL
            if is_full and self.lanes:  # or the workers of other studies would train them on
                with self.share.turns.briefly():
                    self.lanes.part(is_open=False)
            trains = not is_full and bool(self.lanes and self.lanes.trials)
            fresh = self._train() if trains else []
            journal += fresh
            kept += numbers_in(fresh)
            directives = exchanger.answer(0.0 if trains else EXCHANGE_SECONDS)
        return directives, journal

    def _offer(self, reports: list[Report], *, saves: bool) -> Offer:
        """Return the next offer; adds to the reports that go with it. `saves`: with a checkpoint."""
        structure, lanes = None, min(self.width, self._most)
        holds: tuple[TrialStart, ...] = ()
        snapshot = None
        if self.lanes:
            # In one turn, as other workers may train these lanes in between: the reports that go with an offer are
            # those up to its checkpoints, and a trial that it does not hold has no report that is still to come.
            with self.share.turns.briefly():
                self._most = self._find_width(self._sample)
                snapshot = self._take_snapshot() if saves else None
                reports += self.lanes.take_reports()
                structure, holds, lanes = self.lanes.pack.structure, self.lanes.starts, self._count_free(self.lanes)
                self._add_counts(self.lanes)
        counted, self._counted = self._counted, (0, 0)
        return Offer(
            worker=self.name,
            lanes=lanes,
            structure=structure,
            common=() if structure else self.share.structures,
            host=socket.gethostname(),
            device=self.device,
            steps=counted[0],
            room=counted[1],
            holds=holds,
            log=self.log,
            saved=self._write(*snapshot) if snapshot else (),
        )

    def _count_free(self, lanes: StudyLanes) -> int:
        """Return how many more lanes the worker could fill now."""
        own = len(lanes.trials)
        free = min(self._most, lanes.pack.width + self.width) - own
        if lanes.shared.limit is not None:
            free = min(free, lanes.shared.limit - lanes.busy)
        return max(0, free)

    def _is_to_save(self, *, asked: bool) -> bool:
        """Return whether the next offer comes with a checkpoint, as the controller asks for it or it is time."""
        has_trained = self.lanes is not None and any(running.has_trained for running in self.lanes.trials)
        return self.archive is not None and has_trained and (asked or self._timer.is_due())

    def _take_snapshot(self) -> tuple[Snapshot, float] | None:
        """Return the states of its trials, and the seconds that this took; None where no trial has trained."""
        assert self.lanes, "it has lanes"
        start = time.monotonic()
        snapshot = self.lanes.snapshot()
        return (snapshot, time.monotonic() - start) if snapshot else None

    def _write(self, snapshot: Snapshot, seconds: float) -> tuple[Checkpoint, ...]:
        """Write a checkpoint, which took so many seconds before; empty if it could not be written."""
        assert self.archive, "a checkpoint goes there"
        start = time.monotonic()
        saved: tuple[Checkpoint, ...] = ()
        try:
            saved = self.archive.write(self.name, snapshot)
        except OSError as error:
            _log.warning("no checkpoint was written: %s", error)
        self._timer.note_checkpoint(seconds + time.monotonic() - start)
        return saved

    def _add_counts(self, lanes: StudyLanes) -> None:
        steps, room = lanes.take_counts()
        self._counted = self._counted[0] + steps, self._counted[1] + room

    def _leave(self) -> None:
        """Give its lanes back."""
        if self.lanes:
            self._add_counts(self.lanes)
            self.lanes.leave()
            self.lanes = None

    def _find_width(self, trial: Trial) -> int:
        """Return the most lanes of a pack of this trial's structure."""
        found = (self.finder.find(trial) if self.finder else None) or self.width
        if self._rounds < LEAST_ROUNDS:
            found = min(found, self.width)
        return min(found, self._limits.get(trial.structure, found))

    def _apply(self, directives: Directives) -> list[Report]:
        """Do as told; reports of trials that fit in no pack, or of lanes that it leaves."""
        if self.lanes is None:
            return self._begin(directives.start) if directives.start else []
        self.lanes.regroup()
        self.lanes.release(directives.stop)
        self._fill(self.lanes, directives.start)
        reports: list[Report] = []
        if not self.lanes.trials:
            reports = self.lanes.take_reports()
            self._leave()
        return reports

    def _begin(self, trials: Sequence[Trial]) -> list[Report]:
        """Take lanes for the trials and return reports of those that failed at once: a task's model may not fit their
        architecture.
        """
        self._sample = trials[0]
        self._most = self._find_width(trials[0])
        try:
            return [] if self._join(trials[: self._most]) else self._make_fitting_pack(trials)
        except PluginError as error:
            self._leave()
            if any(trial.architecture_trial is None for trial in trials):
                raise
            return [_report_failure(trial.start, 0, str(error)) for trial in trials]

    def _join(self, trials: Sequence[Trial]) -> bool:
        """Take lanes in a pack of other studies; False if no pack has room for more."""
        lanes = self.share.join(trials[0].structure, self.archive)
        if lanes is None:
            return False
        use_device(torch.device(self.device))  # this thread may not have made a pack before
        self.lanes = lanes
        self._fill(lanes, trials)
        if lanes.trials:
            return True
        self._leave()
        return False

    def _make_fitting_pack(self, trials: Sequence[Trial]) -> list[Report]:
        """Make a pack of as many of the trials as memory has room for."""
        lanes = min(self._most, len(trials))
        made = self._make_pack(trials[:lanes])
        while isinstance(made, Shortage) and lanes > NARROWEST:
            lanes = self._fit(lanes)
            made = self._make_pack(trials[:lanes])
        if isinstance(made, Shortage):
            return [
                _report_failure(trial.start, trial.parent_step, _describe_shortage(made)) for trial in trials[:lanes]
            ]
        self.lanes = self.share.open(made, self.archive)
        return []

    def _make_pack(self, trials: Sequence[Trial]) -> Pack | Shortage:
        def make() -> Pack:
            pack = Pack(trials[0], width=len(trials), device=self.device)
            pack.fill(trials, self.share.study, self.archive)
            return pack

        return attempt(make, self.device)

    def _fill(self, lanes: StudyLanes, trials: Sequence[Trial]) -> None:
        """Place more trials in the pack; those for which it cannot grow are not held."""
        pack, shared = lanes.pack, lanes.shared

        def place() -> None:
            width = fitting(pack.width, lanes.busy + len(trials), shared.idle, pack.width_seconds)
            if width != pack.width:
                shared.idle = 0.0
            pack.resize(width)
            lanes.fill(trials)

        if attempt(place, self.device):
            self._most = self._limits[pack.structure] = max(NARROWEST, lanes.room)

    def _train(self) -> list[Report]:
        """Train the pack to the next report of a trial of its own, or for a while."""
        self._timer.note_training()
        until, trained = time.monotonic() + EXCHANGE_SECONDS, 0.0
        while self.lanes and self.lanes.trials and not self.lanes.has_reports() and time.monotonic() < until:
            with self.share.turns.training(self.lanes.has_reports, self.lanes.users) as is_mine:
                start = time.monotonic()
                shared, free = self.lanes.shared, self.lanes.pack.free / self.lanes.pack.width
                while self.lanes.trials and not self.lanes.has_reports() and time.monotonic() < until and is_mine():
                    self._steps(self.lanes)
                seconds = time.monotonic() - start
            trained += seconds
            shared.idle += free * seconds
        if self.finder:
            self.finder.add_training_time(trained)
        return self.lanes.take_reports() if self.lanes else []

    def _steps(self, lanes: StudyLanes) -> None:
        trained = attempt(lambda: lanes.train(CHECK_STEPS), self.device)
        if isinstance(trained, Shortage):
            self._halve(lanes, trained)
        self.share.turns.wake()  # those whose trials have reported

    def _halve(self, lanes: StudyLanes, shortage: Shortage) -> None:
        """Train on with the half of the trials that is furthest; those of the narrowest pack fail."""
        trials = [running for running in lanes.pack.lanes if running]
        if lanes.pack.width == NARROWEST:
            for one in trials:
                failed = _report_failure(TrialStart(one.number, one.fence), one.step, _describe_shortage(shortage))
                lanes.shared.members[one.study].deliver(failed)
            lanes.drop(trials)
            return
        lanes.shared.limit = width = self._fit(lanes.pack.width)
        lanes.drop(sorted(trials, key=lambda running: -running.step)[width:])
        if attempt(lambda: lanes.pack.resize(width), self.device):  # not even that: the next pack starts from nothing
            lanes.drop(trials)

    def _fit(self, width: int) -> int:
        """Half of a width that memory had no room for, noted for this structure."""
        self._most = self._limits[self._sample.structure] = max(NARROWEST, width // 2)
        return self._most


def _report_failure(one: TrialStart, step: int, error: str) -> Report:
    return Report(number=one.number, fence=one.fence, step=step, metrics=(), state="failed", error=error)


def _describe_shortage(shortage: Shortage) -> str:
    return f"out of memory in a pack of {NARROWEST} lanes: {shortage.reason}"


def fitting(width: int, needed: int, idle: float, price: float) -> int:
    """Return the width for `needed` lanes: wider when they do not fit, narrower when half would be free or it has
    paid off.

    `idle` is what free lanes have cost since the pack has this width, `price` what another width costs, in seconds. As
    nobody knows how long the pack will go on, it waits until the one reaches the other, and so never pays more than
    twice the least that could have been paid (the ski-rental rule; Karlin et al., "Competitive Snoopy Caching", 1988).
    Halving costs few widths, and no search ends with most of its lanes free.
    """
    return needed if needed > width or 2 * needed <= width or idle >= price else width
