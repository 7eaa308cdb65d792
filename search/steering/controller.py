"""The controller: the one object that decides what to train, stop and refill.

`exchange` takes a worker's reports and its offer of free lanes, and answers with directives. It
records first and decides then, so that nothing is lost that a sampler, a stopping policy or a
screen has seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, final

from search.objectives import ObjectiveCheck
from search.samplers import Strategy
from search.steering.leases import Leases
from search.steering.ledger import Ledger
from search.steering.requeueing import ALONE, QUARANTINED_AFTER, Requeueing
from search.steering.strategies import resume
from search.steering.study_store import StudyStore
from search.steering.trial_queue import TrialQueue
from search.stopping import Copy, Monitor, begin_policies
from spaces.errors import GraftError
from spaces.progress import Progress, TimeLeft
from spaces.records import TERMINAL, Directives, Offer, Outcome, Report, State, Trial

if TYPE_CHECKING:
    from spaces.space import Space

KeepCheckpoints = Callable[[Collection[str], Collection[str]], None]
"""(kept paths, live workers): removes all checkpoint files but the kept and those being written."""


@final
class Controller:
    """Steers one study. One thread at a time may call it, and it alone may write to its study.

    Trials are written as running before a worker is told of them, and as ended before anyone acts
    on it. A message about a trial has the fence of its start: if that is not the newest start, the
    message is ignored and the worker is told to drop the trial. While another call is under way,
    `renew`, `progress` and `request_stop` may be called.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        monitors: Sequence[Monitor],
        study: StudyStore,
        clock: Callable[[], float] = time.monotonic,
        keep_checkpoints: KeepCheckpoints | None = None,
    ) -> None:
        """Count the numbers below `space.search.trials` that never started as new."""
        self._space = space
        self._objective_check = ObjectiveCheck()
        self._planned = space.search.trials
        self._study = study
        self._leases = Leases(study, clock)
        self._keep_checkpoints = keep_checkpoints
        self._clock = clock
        self._ledger = Ledger(space, strategy, monitors, study, clock)
        self._saving: set[str] = set()
        """Workers that were asked to write a checkpoint before they are dismissed."""
        # Trials by hand come after the planned ones.
        first = study.queries.next_number()
        self._next_copy = max(self._planned, first)
        # Holes are numbers that the sampler was asked for and whose trials were never started.
        holes = [range(hole.start, min(hole.stop, self._planned)) for hole in study.queries.holes()]
        self._queue = TrialQueue(strategy, [*holes, range(first, self._planned)])
        self._requeueing = Requeueing(study, self._ledger, self._queue)
        self._stopping = False
        self._finished = False
        self._time_left: TimeLeft | None = None
        self._estimated = -math.inf
        """The time at which `_time_left` was estimated."""

    @classmethod
    def begin(
        cls,
        space: Space,
        study: StudyStore,
        clock: Callable[[], float] = time.monotonic,
        keep_checkpoints: KeepCheckpoints | None = None,
        crashed: bool = False,
    ) -> Self:
        """Return the controller of a study that is new or resumed.

        Trials that were running when the last controller ended are queued again. The sampler learns
        every outcome and which trials are open; stopping policies that compare trials see all
        reports that are kept again. `crashed`: the launch before crashed by itself, in the
        process that also trained; otherwise it was killed. Raises StudyError for policies that do
        not go together.
        """
        interrupted = study.queries.running()
        # A single running trial may have crashed the launch; with several, nothing can be said. A
        # launch that was killed, by whomever, says nothing about its trials.
        crashed_alone = interrupted[0].number if crashed and len(interrupted) == 1 else None
        (study.release if crashed_alone is None else study.rescue)(interrupted)
        queued = [(space.restore(lineage), trial) for lineage, trial in study.queries.queued()]
        monitors = begin_policies(space)
        # The draws of a million trials take seconds and gigabytes: they are read only if needed.
        compare = any(monitor.compares for monitor in monitors)
        needed = space.needs_outcomes or space.search.sampler.learns or compare
        ended = study.queries.outcomes(None) if needed else []
        strategy = resume(space, ended, [Outcome.of_open(trial) for trial, _ in queued])
        _recall(monitors, space, study, ended)
        controller = cls(space, strategy, monitors, study, clock, keep_checkpoints)
        # The trial that crashed alone comes last, when it is known what else there is to train.
        for trial, known in sorted(queued, key=lambda pair: pair[0].number == crashed_alone):
            repeated = trial.number == crashed_alone and known.crashes >= QUARANTINED_AFTER + ALONE
            well = any(controller._ledger.ended[state] for state in TERMINAL - {"failed"})
            is_cause = repeated and (well or controller._requeueing.is_last(trial.number))
            controller._requeueing.route(trial, known, is_cause=is_cause)
        controller._tidy(controller._leases.workers)
        return controller

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record a worker's reports, decide, and fill its free lanes.

        An error of the store ends the run; a new controller resumes from what was written.
        """
        # Other workers may train the trials of one without a lease: its reports are not looked at.
        if not self._leases.admit(offer):
            return Directives(lease_lost=True)
        current = self._ledger.current(reports, offer.worker)
        self._objective_check.check((self._space.search_of(report.number), report) for report in current)
        self._requeueing.note_reports(current)
        results = self._ledger.record(current)
        self._ledger.close_and_prune(current, results)
        self._requeueing.forgive(self._ledger.save(offer))
        self._requeueing.release(self._ledger.running.of(offer.worker) - {start.number for start in offer.holds})
        self._stopping = self._stopping or self._study.stop_requested()
        if not self._stopping:
            directives = self._assign(offer, current)
        elif offer.holds and offer.worker not in self._saving:
            # The worker is asked once to save; at its next exchange it is dismissed.
            self._saving.add(offer.worker)
            directives = Directives(save=True)
        else:
            self._requeueing.release(self._ledger.running.of(offer.worker))
            self._leases.dismiss(offer.worker)
            directives = Directives(stop=tuple(start.number for start in offer.holds), done=True)
        if offer.saved:
            self._tidy(self._leases.workers)
        self.sweep()
        return directives

    def request_stop(self) -> None:
        """Dismiss every worker that exchanges from now on; its running trials are queued again."""
        self._stopping = True

    def renew(self, worker: str) -> bool:
        """Renew a worker's lease; False if it has expired. Any thread may call it at any time."""
        return self._leases.renew(worker)

    def sweep(self) -> None:
        """Requeue, every ten seconds, the trials of workers with expired leases; call it often."""
        for worker in self._leases.sweep():
            self.handle_departure(worker)

    def handle_crash(self, worker: str) -> None:
        """Requeue the trials of a worker whose process crashed; one of them may be the cause."""
        self._leases.drop(worker)
        self._requeueing.rescue(self._ledger.running.of(worker))

    def handle_departure(self, worker: str) -> None:
        """Requeue the trials of a worker whose machine is gone or cannot be reached."""
        self._leases.drop(worker)
        self._requeueing.release(self._ledger.running.of(worker))

    @property
    def makes_copies(self) -> bool:
        """True if a stopping policy makes copies of trials."""
        return self._ledger.makes_copies

    def close(self) -> None:
        """Write how the run ended, if the database still answers, and give the study back."""
        with suppress(GraftError):
            self._leases.write_renewals()
            self._study.set_state("finished" if self._finished else "stopped")
            self._tidy(())
        self._study.close()

    def progress(self) -> Progress:
        """Return where the study stands; the cost grows with its running trials alone."""
        ledger = self._ledger
        best, number = ledger.best if ledger.best and self._space.tells_best else (None, None)
        return Progress(
            planned=self._next_copy,
            counts={**ledger.ended, "running": len(ledger.running), "queued": self._queue.queued},
            objective=self._space.search.objectives_text,
            best=best,
            best_number=number,
            reports=ledger.reports,
            steps=ledger.steps,
            model_steps=self._leases.steps,
            lane_room=self._leases.room,
            stopping=self._stopping,
            time_left=self._estimate_time_left(),
        )

    def _estimate_time_left(self) -> TimeLeft | None:
        """Return an estimate that is less than a second old; a new one takes 7 us per running trial."""
        now, running = self._clock(), self._ledger.running
        if now >= self._estimated + 1.0 or not running:
            self._time_left = self._ledger.pace.time_left(running.all(), self._queue.waiting, now)
            self._estimated = now
        return self._time_left

    # -- fill the lanes --------------------------------------------------------------------------

    def _assign(self, offer: Offer, reports: Sequence[Report]) -> Directives:
        """Return trials for the free lanes of a worker, and those that it holds and must drop."""
        copies = self._ledger.copies(reports, offer.worker, self._next_copy)
        holds, running = offer.holds, self._ledger.running
        # Within the study's share, lanes of stopped trials are free, too; beside a suspected one none is.
        stopped = sum(not running.has(start, offer.worker) for start in holds)
        stopped = 0 if offer.structure is None else max(0, stopped - offer.surplus)
        is_suspected = self._requeueing.is_suspected(running.of(offer.worker))
        started = self._start(offer, 0 if is_suspected else offer.lanes + stopped, copies)
        stop = tuple(start.number for start in holds if not running.has(start, offer.worker))
        waiting_per_running = self._queue.waiting / max(1, len(running))
        done = self._queue.empty and not self._ledger.running
        if done:
            self._finished = True
            self._leases.dismiss(offer.worker)
        return Directives(stop=stop, start=started, done=done, waiting_per_running=waiting_per_running)

    def _start(self, offer: Offer, lanes: int, copies: Sequence[Copy]) -> tuple[Trial, ...]:
        """Start the copies in the lanes that they take over, and queued or new trials in others."""
        beside = {running.trial.structure for running in self._ledger.running.all()} if offer.is_beside else ()
        filling = self._queue.take(offer.structure, lanes, offer.common, beside)
        if not filling and not self._ledger.running and offer.structure is None and offer.lanes:
            filling = self._queue.take_quarantined()
        replaced = [self._ledger.prune_result(copy.replaced) for copy in copies]
        try:
            trials = (*(copy.trial for copy in copies), *filling)
            started = self._ledger.start(trials, offer.worker, replaced)
        except Exception:
            # The worker may ask again, and must get these trials; copies are made again.
            self._queue.requeue(filling)
            raise
        self._next_copy += len(copies)
        self._requeueing.note_start(started)
        self._ledger.close(replaced)
        self._ledger.restore([trial for trial in started if trial.checkpoints])
        return started

    def _tidy(self, live_workers: Collection[str]) -> None:
        """Remove the checkpoint files that no trial resumes from and no live worker writes."""
        if self._keep_checkpoints:
            self._keep_checkpoints(self._study.queries.checkpoint_paths(), live_workers)


def _recall(monitors: Sequence[Monitor], space: Space, study: StudyStore, ended: Sequence[Outcome]) -> None:
    """Give policies their knowledge of earlier trials again, after a restart."""
    states: dict[int, State] = {outcome.number: outcome.state for outcome in ended}
    for monitor in monitors:
        if monitor.compares:
            reports = study.queries.reports(monitor.compares)
            observed = [report for report in reports if not space.trains_to_end(report.number)]
            monitor.recall_reports(observed, states)
        if monitor.makes_copies:
            monitor.recall_copied(study.queries.copy_steps())
