"""A worker: trains trials on one device, in the lanes of a pack, as the controller directs.

The loop is the same in every pool. A lane that becomes free, because its trial finished, diverged
or was stopped, gets the next trial of the same structure while the other lanes train on. When none
is left, the pack narrows with its last lanes, and then the worker asks for another structure. When
memory runs out, the pack is halved, and as many trials as it then has room for, the furthest, train
on; the next offer does not hold the others, so the controller requeues them. If the controller does
not answer within EXCHANGE_SECONDS, as when its database is down, the lanes train on. Workers of
other studies may have lanes in the same pack (`shared_packs`) and train them all in their turns.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spaces.errors import PluginError
from spaces.records import Checkpoint, Directives, Offer, Report, Trial, TrialStart
from workers.engine.checkpoints import Archive, Snapshot
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.pack import CHECK_STEPS, Pack
from workers.engine.pack.lanes import NARROWEST
from workers.pool.checkpoint_timer import CheckpointTimer
from workers.pool.exchanger import MAX_JOURNAL_NUMBERS, Exchange, Exchanger, numbers_in
from workers.pool.heartbeat import Heartbeat
from workers.pool.shared_packs import StudyDevice, StudyLanes, choose_width

EXCHANGE_SECONDS = 2.0
"""Most seconds of training between two exchanges, so that a worker soon learns of a stop.

Lanes also stand idle for an answer no longer than this.
"""

MIN_WAITING_PER_RUNNING = 4
"""Below this `Directives.waiting_per_running` no pack grows beyond `Worker.width`.

Other workers train the trials that wait.
"""

_log = logging.getLogger("graft.worker")


class WidthFinder(Protocol):
    """Finds the number of lanes at which a structure trains fastest."""

    def find(self, trial: Trial) -> int | None:
        """Return the most lanes for a pack of this trial's structure, if they are known."""

    def add_training_time(self, seconds: float) -> None:
        """Note seconds of training, a share of which may be spent on measuring widths."""


@dataclass(kw_only=True)
class Worker:
    """Trains the controller's trials until the study is done or the lease is lost."""

    name: str
    exchange: Exchange
    device: str = "cpu"
    width: int
    """Most lanes of a new pack, and most that are added at a time: workers share a queue evenly."""
    finder: WidthFinder | None = None
    """Finds how wide packs may become while many trials wait; None: `width`."""
    renew: Callable[[], bool] = lambda: True
    """Renews the worker's lease and returns True if it is still held; called from several threads."""
    archive: Archive | None = None
    """The archive of its checkpoints; None if none are written."""
    save_seconds: float = math.inf
    """Most seconds between checkpoints; infinite: only on the controller's request."""
    log: str = ""
    """The file of the worker's log."""
    wait_for_work: Callable[[], None] = field(default=lambda: time.sleep(0.2))
    """Called while there is nothing to train: other workers' trials may be requeued."""
    study_device: StudyDevice = field(default_factory=StudyDevice)
    """The study's access to the device: its turns, and packs that studies may share."""
    lanes: StudyLanes | None = None
    """The study's lanes in the current pack; None while the worker has no pack."""
    _max_width: int = field(init=False)
    """Most lanes that this study may have in the pack."""
    _sample: Trial = field(init=False)
    """A trial of the pack's structure."""
    _limits: dict[str, int] = field(init=False, default_factory=dict[str, int])
    """Structure -> most lanes that this study may have in its packs, if memory ran out with more."""
    _waiting_per_running: float = field(init=False, default=0.0)
    """`Directives.waiting_per_running` of the last answer."""
    _timer: CheckpointTimer = field(init=False)
    """Says when the next checkpoint is due."""
    _counts: tuple[int, int] = field(init=False, default=(0, 0))
    """The `steps` and the `room` of the next `Offer`, so far."""

    def __post_init__(self) -> None:
        self._max_width = self.width
        self._timer = CheckpointTimer(self.save_seconds)

    def run(self) -> bool:
        """Train until the study is done, then free all lanes; False if the lease was lost."""
        reports: list[Report] = []
        saves = False
        try:
            with Exchanger(self.exchange) as exchanger, Heartbeat(self.renew) as heartbeat:
                while heartbeat.alive():
                    offer = self._offer(reports, saves=saves)
                    sent = time.monotonic()
                    exchanger.send(reports, offer)
                    directives, reports = self._await_answer(exchanger, heartbeat)
                    if offer.saved:  # the lanes wait for an answer no longer than this
                        self._timer.add_cost(min(time.monotonic() - sent, EXCHANGE_SECONDS))
                    if directives is None or directives.lease_lost:
                        break
                    if directives.done:
                        return True
                    self._waiting_per_running = directives.waiting_per_running
                    with self.study_device.turns.briefly():
                        reports += self._apply(directives)
                        trained = self.lanes and any(trial.has_trained for trial in self.lanes.trials)
                        is_due = directives.save or self._timer.is_due()
                        saves = bool(self.archive and trained and is_due)
                    if not (reports or directives.save or saves):
                        reports = self._train()
                    if self.lanes is None and offer.structure is None and not reports:
                        self.wait_for_work()
            return False
        finally:
            with self.study_device.turns.briefly():
                self._leave()

    def _await_answer(self, exchanger: Exchanger, heartbeat: Heartbeat) -> tuple[Directives | None, list[Report]]:
        """Return the controller's answer, or None if the lease was lost, and reports until then."""
        journal, entries = list[Report](), 0
        directives = exchanger.answer(EXCHANGE_SECONDS)
        while directives is None and heartbeat.alive():
            # The lanes train on while the controller is away, until their reports fill the journal.
            is_full = entries >= MAX_JOURNAL_NUMBERS
            if is_full and self.lanes:  # else workers of other studies would train them on
                with self.study_device.turns.briefly():
                    self.lanes.part(is_open=False)
            can_train = not is_full and bool(self.lanes and self.lanes.trials)
            new_reports = self._train() if can_train else []
            journal += new_reports
            entries += numbers_in(new_reports)
            directives = exchanger.answer(0.0 if can_train else EXCHANGE_SECONDS)
        return directives, journal

    def _offer(self, reports: list[Report], *, saves: bool) -> Offer:
        """Return the next offer, with a checkpoint if `saves`; the lanes' reports are appended."""
        structure, lanes = None, min(self.width, self._max_width)
        holds: tuple[TrialStart, ...] = ()
        snapshot, seconds = None, 0.0
        if self.lanes:
            # In one turn, as others may train these lanes between turns: an offer goes with all reports up to
            # its checkpoints; a trial that it does not hold has sent its last, or was dropped for memory.
            with self.study_device.turns.briefly():
                self._max_width = self._find_width(self._sample)
                if saves:
                    start = time.monotonic()
                    snapshot, seconds = self.lanes.snapshot(), time.monotonic() - start
                reports += self.lanes.take_reports()
                structure, holds, lanes = self.lanes.pack.structure, self.lanes.starts, self._count_free(self.lanes)
                self._add_counts(self.lanes)
        counts, self._counts = self._counts, (0, 0)
        return Offer(
            worker=self.name,
            lanes=lanes,
            structure=structure,
            common=() if structure else self.study_device.structures,
            is_beside=self.study_device.is_beside,
            host=socket.gethostname(),
            device=self.device,
            steps=counts[0],
            room=counts[1],
            holds=holds,
            log=self.log,
            saved=self._write(snapshot, seconds) if snapshot else (),
        )

    def _count_free(self, lanes: StudyLanes) -> int:
        """Return how many more lanes the worker could fill now."""
        held = len(lanes.trials)
        free = min(self._max_width, lanes.pack.width + self.width) - held
        if lanes.shared.limit is not None:
            free = min(free, lanes.shared.limit - lanes.busy)
        return max(0, free)

    def _write(self, snapshot: Snapshot, seconds: float) -> tuple[Checkpoint, ...]:
        """Write a checkpoint; empty if that fails. `seconds`: how long the snapshot took."""
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
        """Add the lanes' steps and room since the last call to the next offer's."""
        steps, room = lanes.take_counts()
        self._counts = self._counts[0] + steps, self._counts[1] + room

    def _leave(self) -> None:
        """Free the worker's lanes, and leave the pack."""
        if self.lanes:
            self._add_counts(self.lanes)
            self.lanes.leave()
            self.lanes = None
            self._max_width = self.width  # the next structure has limits of its own

    def _find_width(self, trial: Trial) -> int:
        """Return the most lanes that a pack of this trial's structure may have now."""
        width = (self.finder.find(trial) if self.finder else None) or self.width
        if self._waiting_per_running < MIN_WAITING_PER_RUNNING:
            width = min(width, self.width)
        return min(width, self._limits.get(trial.structure, width))

    def _apply(self, directives: Directives) -> list[Report]:
        """Follow the directives; return reports of failed starts, and the last of a pack that is left."""
        if self.lanes is None:
            return self._start(directives.start) if directives.start else []
        self.lanes.regroup()
        self.lanes.release(directives.stop)
        self._fill(self.lanes, directives.start)
        reports: list[Report] = []
        if not self.lanes.trials:
            reports = self.lanes.take_reports()
            self._leave()
        return reports

    def _start(self, trials: Sequence[Trial]) -> list[Report]:
        """Start trials in another study's pack or a new one; return reports of those that fail.

        In a transfer, a task's model may not fit the architecture that a trial takes from another.
        """
        self._sample = trials[0]
        try:
            self._max_width = self._find_width(trials[0])
            return [] if self._join(trials[: self._max_width]) else self._make_fitting_pack(trials)
        except PluginError as error:
            self._leave()
            if any(trial.architecture_trial is None for trial in trials):
                raise
            return [_report_failure(trial.start, 0, str(error)) for trial in trials]

    def _join(self, trials: Sequence[Trial]) -> bool:
        """Start trials in a pack of other studies.

        Returns False if there is none of this structure, or no memory for any of them in it.
        """
        self.lanes = self.study_device.join(trials[0].structure, self.archive)
        if self.lanes:
            self._fill(self.lanes, trials)
            if not self.lanes.trials:
                self._leave()
        return self.lanes is not None

    def _make_fitting_pack(self, trials: Sequence[Trial]) -> list[Report]:
        """Make a pack of as many trials as fit in memory; return failures if none do."""
        lanes = min(self._max_width, len(trials))
        pack = self._make_pack(trials[:lanes])
        while isinstance(pack, Shortage) and lanes > NARROWEST:
            lanes = self._halve_limit(lanes)
            pack = self._make_pack(trials[:lanes])
        if isinstance(pack, Shortage):
            error = _describe_shortage(pack)
            return [_report_failure(trial.start, trial.parent_step, error) for trial in trials[:lanes]]
        self.lanes = self.study_device.open(pack, self.archive)
        return []

    def _make_pack(self, trials: Sequence[Trial]) -> Pack | Shortage:
        """Make a pack with these trials in its lanes."""

        def make() -> Pack:
            pack = Pack(trials[0], width=len(trials), device=self.device)
            pack.fill(trials, self.study_device.study, self.archive)
            return pack

        return attempt(make, self.device)

    def _fill(self, lanes: StudyLanes, trials: Sequence[Trial]) -> None:
        """Start these trials, if any, and let the pack's width follow: it may widen or narrow.

        The next offer does not hold those that do not fit in memory.
        """
        pack, shared = lanes.pack, lanes.shared

        def place() -> None:
            width = choose_width(pack.width, lanes.busy + len(trials), shared.free_lane_seconds, pack.setup_seconds)
            if width != pack.width:
                shared.free_lane_seconds = 0.0
            pack.resize(width)
            lanes.fill(trials)

        if attempt(place, self.device):  # a shortage
            self._max_width = self._limits[pack.structure] = max(NARROWEST, lanes.usable_lanes)

    def _train(self) -> list[Report]:
        """Train until a trial of this worker reports, or for EXCHANGE_SECONDS; return reports."""
        self._timer.note_training()
        until, train_seconds = time.monotonic() + EXCHANGE_SECONDS, 0.0
        while self.lanes and self.lanes.trials and not self.lanes.has_reports() and time.monotonic() < until:
            with self.study_device.turns.training(self.lanes.has_reports, self.lanes.users) as is_mine:
                start = time.monotonic()
                shared, free = self.lanes.shared, self.lanes.pack.free / self.lanes.pack.width
                while self.lanes.trials and not self.lanes.has_reports() and time.monotonic() < until and is_mine():
                    self._train_steps(self.lanes)
                seconds = time.monotonic() - start
            train_seconds += seconds
            shared.free_lane_seconds += free * seconds
        if self.finder:
            self.finder.add_training_time(train_seconds)
        return self.lanes.take_reports() if self.lanes else []

    def _train_steps(self, lanes: StudyLanes) -> None:
        """Train the pack for a few steps, and halve it if memory runs out."""
        trained = attempt(lambda: lanes.train(CHECK_STEPS), self.device)
        if isinstance(trained, Shortage):
            self._halve(lanes, trained)
        self.study_device.turns.wake()  # workers whose trials have reported need no turn now

    def _halve(self, lanes: StudyLanes, shortage: Shortage) -> None:
        """Halve the pack, and keep as many trials, the furthest; in the narrowest pack all fail."""
        trials = [running for running in lanes.pack.lanes if running]
        if lanes.pack.width == NARROWEST:
            for running in trials:
                start, error = TrialStart(running.number, running.fence), _describe_shortage(shortage)
                report = _report_failure(start, running.step, error)
                lanes.shared.members[running.study].deliver(report)
            lanes.drop(trials)
            return
        lanes.shared.limit = width = self._halve_limit(lanes.pack.width)
        lanes.drop(sorted(trials, key=lambda running: -running.step)[width:])
        if attempt(lambda: lanes.pack.resize(width), self.device):  # no memory even for that
            lanes.drop(trials)

    def _halve_limit(self, width: int) -> int:
        """Make half of a width that did not fit in memory the structure's limit, and return it."""
        self._max_width = self._limits[self._sample.structure] = max(NARROWEST, width // 2)
        return self._max_width


def _report_failure(start: TrialStart, step: int, error: str) -> Report:
    return Report(number=start.number, fence=start.fence, step=step, metrics=(), state="failed", error=error)


def _describe_shortage(shortage: Shortage) -> str:
    return f"out of memory in a pack of {NARROWEST} lanes: {shortage.reason}"
