"""A worker: one device, one pack at a time, steered by `exchange`.

The loop is the same wherever it runs. A lane freed by completion, divergence or a stopping policy is filled with the
next trial of the same structure while its neighbours go on; when a structure has no trials left, the pack narrows with
its last lanes, and then the worker asks for another structure. When memory runs out, the half of the lanes that is
furthest goes on; the others, which its next offer does not hold, go back in the queue. While the controller does not
answer, as when its database is away, the lanes train on.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from spaces.errors import PluginError
from spaces.records import Checkpoint, Directives, Offer, Report, Trial, TrialStart
from workers.engine.checkpoints import Archive
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.pack import CHECK_STEPS, Pack
from workers.engine.pack.lanes import NARROWEST
from workers.pool.checkpoint_timer import CheckpointTimer
from workers.pool.exchanger import JOURNAL, Exchange, Exchanger, numbers_in
from workers.pool.heartbeat import Heartbeat
from workers.pool.turns import IsMine, undivided

EXCHANGE_SECONDS = 2.0
"""A worker speaks to the controller at least this often, so that a stop is heard."""

LEAST_ROUNDS = 4
"""Packs are not wider than they begin when fewer trials wait: one worker would hold what others could be training."""


_log = logging.getLogger("graft.worker")


Turn = Callable[[], AbstractContextManager[IsMine]]
"""Gives a context in which a worker has its device to itself, and a function that says whether it should keep it."""


class Finder(Protocol):
    """Finds the number of lanes with which a structure trains fastest."""

    def find(self, trial: Trial) -> int | None:
        """Most lanes of a pack of this trial's structure; None while that is not known."""
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
    turn: Turn = undivided
    """Entered to use the device, which packs of other studies may share."""
    pack: Pack | None = None
    _most: int = field(init=False)
    """Most lanes of the pack."""
    _sample: Trial = field(init=False)
    """A trial of the pack's structure."""
    _limits: dict[str, int] = field(init=False, default_factory=dict[str, int])
    """Structure -> lanes that are left of it since memory ran out."""
    _idle: float = field(init=False, default=0.0)
    """Seconds that free lanes have cost since the pack has its width."""
    _rounds: float = field(init=False, default=0.0)
    """How often the trials that wait would fill all lanes at work."""
    _saved: tuple[Checkpoint, ...] = field(init=False, default=())
    """What the next offer says of a checkpoint."""
    _timer: CheckpointTimer = field(init=False)
    """Says when the next checkpoint is due."""
    _counted: tuple[int, int] = field(init=False, default=(0, 0))
    """Steps and room, as in `Offer`, since the last one."""

    def __post_init__(self) -> None:
        self._most = self.width
        self._timer = CheckpointTimer(self.save_seconds)

    def run(self) -> bool:
        """Exchange and train until done; False if the lease ran out, and everything that it held is dropped."""
        reports: list[Report] = []
        with Exchanger(self.exchange) as exchanger, Heartbeat(self.renew) as heartbeat:
            while heartbeat.alive():
                offer = self._offer()
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
                with self.turn():
                    reports += self._apply(directives)
                self._save(asked=directives.save)
                if not (reports or directives.save or self._saved):
                    reports = self._train()
                if self.pack is None and offer.structure is None and not reports:
                    self.idle()
        self.pack = None
        return False

    def _await_answer(self, exchanger: Exchanger, heartbeat: Heartbeat) -> tuple[Directives | None, list[Report]]:
        """The controller's answer, and what the lanes report until it comes; None if the lease ran out meanwhile."""
        journal, kept = list[Report](), 0
        directives = exchanger.answer(EXCHANGE_SECONDS)
        while directives is None and heartbeat.alive():
            # Lanes train on while the controller is away, until what they would have to report outgrows the journal.
            trains = kept < JOURNAL and bool(self.pack and self.pack.running)
            fresh = self._train() if trains else []
            journal += fresh
            kept += numbers_in(fresh)
            directives = exchanger.answer(0.0 if trains else EXCHANGE_SECONDS)
        return directives, journal

    def _offer(self) -> Offer:
        structure, lanes = None, min(self.width, self._most)
        holds: tuple[TrialStart, ...] = ()
        if self.pack:
            with self.turn():
                self._most = self._find_width(self._sample)
            widened = min(self._most, self.pack.width + self.width)
            holds = tuple(TrialStart(running.number, running.fence) for running in self.pack.lanes if running)
            structure, lanes = self.pack.structure, max(0, widened - len(holds))
        saved, self._saved = self._saved, ()
        counted, self._counted = self._counted, (0, 0)
        return Offer(
            worker=self.name,
            lanes=lanes,
            structure=structure,
            host=socket.gethostname(),
            device=self.device,
            steps=counted[0],
            room=counted[1],
            holds=holds,
            log=self.log,
            saved=saved,
        )

    def _save(self, *, asked: bool) -> None:
        """Write a checkpoint of the pack if the controller asks, or if it is time."""
        if self.pack is None or self.archive is None or not (asked or self._timer.is_due()):
            return
        start = time.monotonic()
        snapshot = self.pack.snapshot()
        if snapshot is None:
            return
        try:
            self._saved = self.archive.write(self.name, snapshot)
        except OSError as error:
            _log.warning("no checkpoint was written: %s", error)
        self._timer.note_checkpoint(time.monotonic() - start)

    def _find_width(self, trial: Trial) -> int:
        """Most lanes of a pack of this trial's structure."""
        found = (self.finder.find(trial) if self.finder else None) or self.width
        if self._rounds < LEAST_ROUNDS:
            found = min(found, self.width)
        return min(found, self._limits.get(trial.structure, found))

    def _apply(self, directives: Directives) -> list[Report]:
        """Do as told; reports of trials that fit in no pack."""
        if self.pack is None:
            return self._begin(directives.start) if directives.start else []
        self.pack.release(directives.stop)
        self._fill(self.pack, directives.start)
        if not self.pack.running:
            self.pack = None
        return []

    def _begin(self, trials: Sequence[Trial]) -> list[Report]:
        """Make a pack of the trials; those with an architecture that their task's model cannot have have failed."""
        try:
            return self._make_fitting_pack(trials)
        except PluginError as error:
            if any(trial.architecture_trial is None for trial in trials):
                raise
            return [_report_failure(trial.start, 0, str(error)) for trial in trials]

    def _make_fitting_pack(self, trials: Sequence[Trial]) -> list[Report]:
        """Make a pack of as many of the trials as memory has room for."""
        self._sample, self._idle = trials[0], 0.0
        self._most = self._find_width(trials[0])
        lanes = min(self._most, len(trials))
        made = self._make_pack(trials[:lanes])
        while isinstance(made, Shortage) and lanes > NARROWEST:
            lanes = self._fit(lanes)
            made = self._make_pack(trials[:lanes])
        if isinstance(made, Shortage):
            return [
                _report_failure(trial.start, trial.parent_step, _describe_shortage(made)) for trial in trials[:lanes]
            ]
        self.pack = made
        return []

    def _make_pack(self, trials: Sequence[Trial]) -> Pack | Shortage:
        def make() -> Pack:
            pack = Pack(trials[0], width=len(trials), device=self.device, archive=self.archive)
            pack.fill(trials)
            return pack

        return attempt(make, self.device)

    def _fill(self, pack: Pack, trials: Sequence[Trial]) -> None:
        """Place more trials in the pack; those for which it cannot grow are not held."""

        def place() -> None:
            width = fitting(pack.width, len(pack.running) + len(trials), self._idle, pack.width_seconds)
            if width != pack.width:
                self._idle = 0.0
            pack.resize(width)
            pack.fill(trials)

        if attempt(place, self.device):
            self._most = self._limits[pack.structure] = pack.width

    def _train(self) -> list[Report]:
        self._timer.note_training()
        until, trained, reports = time.monotonic() + EXCHANGE_SECONDS, 0.0, list[Report]()
        free = self.pack.free / self.pack.width if self.pack else 0.0
        while self.pack and not reports and time.monotonic() < until:
            with self.turn() as is_mine:
                start = time.monotonic()
                while self.pack and not reports and time.monotonic() < until and is_mine():
                    pack = self.pack
                    reports = self._steps(pack)
                    steps, room = pack.take_counts()
                    self._counted = self._counted[0] + steps, self._counted[1] + room
                trained += time.monotonic() - start
        self._idle += free * trained
        if self.finder:
            self.finder.add_training_time(trained)
        return reports

    def _steps(self, pack: Pack) -> list[Report]:
        trained = attempt(lambda: pack.train(CHECK_STEPS), self.device)
        return self._halve(pack, trained) if isinstance(trained, Shortage) else trained

    def _halve(self, pack: Pack, shortage: Shortage) -> list[Report]:
        """Train on with the half of the trials that is furthest; those of the narrowest pack fail."""
        trials = [running for running in pack.lanes if running]
        if pack.width == NARROWEST:
            self.pack = None
            return [
                _report_failure(TrialStart(running.number, running.fence), running.step, _describe_shortage(shortage))
                for running in trials
            ]
        width = self._fit(pack.width)
        pack.release(running.number for running in sorted(trials, key=lambda running: -running.step)[width:])
        if attempt(lambda: pack.resize(width), self.device):  # not even that: the next pack starts from nothing
            self.pack = None
        return []

    def _fit(self, width: int) -> int:
        """Half of a width that memory had no room for, noted for this structure."""
        self._most = self._limits[self._sample.structure] = max(NARROWEST, width // 2)
        return self._most


def _report_failure(one: TrialStart, step: int, error: str) -> Report:
    return Report(number=one.number, fence=one.fence, step=step, metrics=(), state="failed", error=error)


def _describe_shortage(shortage: Shortage) -> str:
    return f"out of memory in a pack of {NARROWEST} lanes: {shortage.reason}"


def fitting(width: int, needed: int, idle: float, price: float) -> int:
    """The width for `needed` lanes: wider when they do not fit, narrower when half would be free or it has paid off.

    `idle` is what free lanes have cost since the pack has this width, `price` what another width costs, in seconds. As
    nobody knows how long the pack will go on, it waits until the one reaches the other, and so never pays more than
    twice the least that could have been paid (the ski-rental rule; Karlin et al., "Competitive Snoopy Caching", 1988).
    Halving costs few widths, and no search ends with most of its lanes free.
    """
    return needed if needed > width or 2 * needed <= width or idle >= price else width
