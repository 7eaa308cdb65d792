"""The controller: the one object that decides what to train, stop and refill.

`exchange` takes a worker's reports and its offer of free lanes, and answers with directives. It records first and
decides then: nothing that a sampler, a stopping policy or a screen has seen can be lost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, final

from search.objectives import ObjectiveCheck, objective_after
from search.samplers import Strategy
from search.steering.leases import Leases
from search.steering.running_trials import RunningTrial, RunningTrials
from search.steering.study_store import StudyStore
from search.steering.transfer_strategy import begin
from search.steering.trial_queue import TrialQueue
from search.stopping import Copy, Monitor, check_together
from spaces.errors import GraftError
from spaces.records import (
    TERMINAL,
    Directives,
    Offer,
    Outcome,
    Progress,
    QueuedTrial,
    Report,
    State,
    Trial,
    TrialResult,
    TrialStart,
)

if TYPE_CHECKING:
    from spaces.space import Space

SUSPECTED_AFTER = 3
"""Worker crashes since its last checkpoint after which a trial is suspected: it gets the next empty device to itself,
so that the next crash tells whether it is the cause."""
QUARANTINED_AFTER = 5
"""Worker crashes after which a trial is trained only when no other is, and fails if its worker crashes once more while
that trains nothing else. A launch that crashed counts if nothing else was running; then there must be one crash more,
because a person may have killed the launch for other reasons."""
_NO_WORKER = "nobody"

RemoveCheckpoints = Callable[[Collection[str], Collection[str]], None]
"""Removes checkpoint files but these paths; of workers other than these also what they have not finished."""


@final
class Controller:
    """Steers one study. One thread at a time may call it, and it alone may write to its study.

    Trials are written as running before a worker is told of them, and as ended before anyone acts on it. Whatever a
    worker says of a trial comes with the fence of its start: what is not the newest start of it is ignored, and the
    worker is told to drop it. While another call is under way, `renew`, `progress` and `request_stop` may be called.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        monitors: Sequence[Monitor],
        study: StudyStore,
        clock: Callable[[], float] = time.monotonic,
        remove_checkpoints: RemoveCheckpoints | None = None,
    ) -> None:
        """The numbers below `space.search.trials` that were never started are new; `begin` adds the queued trials."""
        self._space = space
        self._objective_check = ObjectiveCheck()
        self._planned = space.search.trials
        self._strategy = strategy
        self._monitors = monitors
        self._study = study
        self._leases = Leases(study, clock)
        self._remove_checkpoints = remove_checkpoints
        self._running = RunningTrials()
        self._crashes: dict[int, int] = {}
        """Worker crashes of those trials that were started before."""
        self._saving: set[str] = set()
        """Workers that were asked to write a checkpoint before they are dismissed."""
        self._next_copy = max(self._planned, study.created())
        # Holes are numbers that the sampler was asked for and whose trials were never started.
        holes = [range(hole.start, min(hole.stop, self._planned)) for hole in study.holes()]
        self._queue = TrialQueue(strategy, [*holes, range(study.created(), self._planned)])
        self._ended: Counter[State] = Counter(
            {state: count for state, count in study.counts().items() if state in TERMINAL}
        )
        self._best = study.best(space.search.objective.direction)
        self._reports = 0
        self._steps = 0
        self._stopping = False
        self._finished = False

    @classmethod
    def begin(
        cls,
        space: Space,
        study: StudyStore,
        clock: Callable[[], float] = time.monotonic,
        remove_checkpoints: RemoveCheckpoints | None = None,
    ) -> Self:
        """The controller of a study that is new or resumed; raises StudyError for policies that do not go together.

        Trials that were running when the last controller ended are queued again. The sampler learns every outcome and
        which trials are open; stopping policies that compare with ended trials see the reports of these again.
        """
        interrupted = study.running()
        # With one trial running, the trial may be why the launch crashed; with several, nothing can be said.
        (study.rescue if len(interrupted) == 1 else study.release)(interrupted)
        queued = [(space.restore(lineage), trial) for lineage, trial in study.queued()]
        monitors = [policy.begin(space.search.objective) for policy in space.search.stopping]
        check_together(monitors, space.search.history)
        # The draws of a million trials take seconds and gigabytes: they are read only where someone looks at them.
        compare = any(monitor.compares for monitor in monitors)
        needed = space.needs_outcomes or space.search.sampler.learns or compare
        ended = study.outcomes(None) if needed else []
        opened = [
            Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=None, state="queued")
            for trial, _ in queued
        ]
        # Copies of a population are left out: no sampler drew them.
        history = [outcome for outcome in (*ended, *opened) if outcome.number < space.search.trials]
        strategy = begin(space, history)
        groups = {outcome.number: outcome.group for outcome in ended}
        for monitor in monitors:
            if monitor.compares and ended:
                monitor.recall_reports(study.reports(monitor.compares), groups)
            if monitor.makes_copies:
                monitor.recall_copied(study.copied())
        controller = cls(space, strategy, monitors, study, clock, remove_checkpoints)
        for trial, known in queued:
            alone = [one.number for one in interrupted] == [trial.number]
            controller._requeue_one(trial, known, alone=alone and known.crashes > QUARANTINED_AFTER)
        controller._tidy()
        return controller

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record a worker's reports, decide, and fill its free lanes.

        Errors of the study's store are raised to the caller and end the run; a new controller resumes from what was
        written.
        """
        if not self._leases.admit(offer):
            return Directives(lease_lost=True)
        current = self._current(reports, offer.worker)
        self._objective_check.check((self._space.objective_of(report.number), report) for report in current)
        results = self._record(current)
        self._prune(current, results)
        self._save(offer)
        self._release(self._running.of(offer.worker) - {one.number for one in offer.holds})
        self._stopping = self._stopping or self._study.stop_requested()
        directives = self._dismiss(offer) if self._stopping else self._assign(offer, current)
        if offer.saved:
            self._tidy()
        self.sweep()
        return directives

    def request_stop(self) -> None:
        """Dismiss every worker that exchanges from now on; its running trials are queued again."""
        self._stopping = True

    def renew(self, worker: str) -> bool:
        """Renew a worker's lease; False if it has expired. May be called at any time, from any thread."""
        return self._leases.renew(worker)

    def sweep(self) -> None:
        """To be called every second or so: every ten, workers whose leases have expired lose their trials."""
        for worker in self._leases.sweep():
            self.handle_departure(worker)

    def handle_crash(self, worker: str) -> None:
        """Requeue the trials of a worker whose process crashed; one of them may be the cause."""
        self._leases.drop(worker)
        numbers = self._running.of(worker)
        if numbers:
            queued = self._study.rescue(self._running.starts(numbers))
            self._requeue(numbers, queued, alone=len(numbers) == 1)

    def handle_departure(self, worker: str) -> None:
        """Requeue the trials of a worker whose machine is gone, or cannot be reached, which is no trial's fault."""
        self._leases.drop(worker)
        self._release(self._running.of(worker))

    def close(self) -> None:
        """Write how the run ended, if the database still answers, and give the study back."""
        with suppress(GraftError):
            self._leases.write()
            self._study.set_state("finished" if self._finished else "stopped")
            if self._remove_checkpoints:
                self._remove_checkpoints(self._study.checkpoint_paths(), ())
        self._study.close()

    def progress(self) -> Progress:
        """Where the study stands; costs nothing that grows with it."""
        best, number = self._best if self._best and self._space.has_one_objective else (None, None)
        copying = any(monitor.makes_copies for monitor in self._monitors)
        return Progress(
            planned=self._next_copy if copying else self._planned,
            counts={**self._ended, "running": len(self._running), "queued": self._queue.queued},
            objective=str(self._space.search.objective),
            best=best,
            best_number=number,
            reports=self._reports,
            steps=self._steps,
            model_steps=self._leases.steps,
            lane_room=self._leases.room,
            stopping=self._stopping,
        )

    # ------------------------------------------------------------------------------------------------- record, then act

    def _current(self, reports: Sequence[Report], worker: str) -> list[Report]:
        """The reports on starts that the worker holds, none after a trial's last."""
        current: list[Report] = []
        ended: set[int] = set()
        for report in reports:
            if not self._running.has(TrialStart(report.number, report.fence), worker) or report.number in ended:
                continue
            current.append(report)
            if report.state != "running":
                ended.add(report.number)
        return current

    def _record(self, reports: Sequence[Report]) -> list[TrialResult]:
        """Write the reports with the results that they imply; those results.

        What is known of the trials changes only after the write: if it fails, the same reports may be sent again.
        """
        if not reports:
            return []
        objectives = {report.number: self._running[report.number].objective for report in reports}
        results: list[TrialResult] = []
        for report in reports:
            objective = objective_after(self._space.objective_of(report.number), objectives[report.number], report)
            objectives[report.number] = objective
            if report.state != "running":
                results.append(
                    TrialResult(
                        number=report.number,
                        state=report.state,
                        objective=objective if report.state == "finished" else None,
                        error=report.error,
                        fence=report.fence,
                    )
                )
        self._study.record(reports, results, ())
        for report in reports:
            running = self._running[report.number]
            running.objective = objectives[report.number]
            self._steps += max(0, report.step - running.step)
            running.step = max(running.step, report.step)
            running.architectures = report.architectures
        self._reports += len(reports)
        return results

    def _prune(self, reports: Sequence[Report], results: Sequence[TrialResult]) -> None:
        """Show the stopping policies and the sampler what is recorded, and end the trials that a policy stops."""
        groups = {report.number: self._running[report.number].trial.group for report in reports}
        stopped = set[int]().union(*(monitor.observe(reports, groups) for monitor in self._monitors))
        self._close(results)
        pruned = [self._prune_result(number) for number in sorted(stopped & self._running.numbers())]
        if pruned:
            self._study.end(pruned)
            self._close(pruned)

    def _prune_result(self, number: int) -> TrialResult:
        running = self._running[number]
        return TrialResult(number=number, state="pruned", objective=running.objective, fence=running.trial.fence)

    def _close(self, results: Sequence[TrialResult]) -> None:
        """Forget trials whose results are written, after the sampler has learned from them."""
        outcomes: list[Outcome] = []
        objective = self._space.search.objective
        for result in results:
            ended = self._remove(result.number)
            self._crashes.pop(result.number, None)
            self._ended[result.state] += 1
            if result.objective is not None and (
                self._best is None or objective.is_better(result.objective, self._best[0])
            ):
                self._best = result.objective, result.number
            # A copy's objective is not owed to its draws alone, so that no sampler learns from it.
            if not ended.trial.lineage:
                outcomes.append(
                    Outcome(
                        number=result.number,
                        group=ended.trial.group,
                        draws=ended.trial.draws,
                        objective=result.objective,
                        state=result.state,
                        architectures=ended.architectures,
                    )
                )
        if outcomes:
            self._strategy.tell(outcomes)

    def _remove(self, number: int) -> RunningTrial:
        """Take a trial from the running ones; what was known of it."""
        for monitor in self._monitors:
            monitor.forget(number)
        return self._running.pop(number)

    # --------------------------------------------------------------------------------------------------- fill the lanes

    def _assign(self, offer: Offer, reports: Sequence[Report]) -> Directives:
        """Trials for the free lanes of a worker; and which of those that it holds to drop."""
        started = self._start(offer, self._lanes_to_fill(offer), self._copies(reports, offer.worker))
        stop = tuple(one.number for one in offer.holds if not self._running.has(one, offer.worker))
        rounds = self._queue.waiting / max(1, len(self._running))
        done = self._queue.empty and not self._running
        if done:
            self._finished = True
            self._leases.dismiss(offer.worker)
        return Directives(stop=stop, start=started, done=done, rounds=rounds)

    def _copies(self, reports: Sequence[Report], worker: str) -> Sequence[Copy]:
        """Copies that take lanes of the worker's pack; nothing is written yet."""
        if not reports:
            return ()
        own = {number: self._running[number] for number in self._running.of(worker)}
        pack = {number: (running.trial, running.step) for number, running in own.items()}
        reported = {report.number for report in reports} & pack.keys()
        # At most one policy makes copies (`check_together`), so that all may be numbered from the same number.
        return [
            copy for monitor in self._monitors for copy in monitor.copies(self._space, pack, reported, self._next_copy)
        ]

    def _lanes_to_fill(self, offer: Offer) -> int:
        """Free lanes, and those of trials that the worker is told to stop; none beside a suspected trial."""
        if any(self._crashes.get(number, 0) >= SUSPECTED_AFTER for number in self._running.of(offer.worker)):
            return 0
        if offer.structure is None:
            return offer.lanes
        return offer.lanes + sum(not self._running.has(one, offer.worker) for one in offer.holds)

    def _start(self, offer: Offer, lanes: int, copies: Sequence[Copy]) -> tuple[Trial, ...]:
        """Start the copies in the lanes of the trials that they replace, and queued or new trials in other lanes."""
        filling = self._queue.take(offer.structure, lanes)
        if not filling and not self._running and offer.structure is None and offer.lanes:
            filling = self._queue.take_quarantined()
        replaced = [self._prune_result(copy.replaced) for copy in copies]
        try:
            started = self._write_start((*(copy.trial for copy in copies), *filling), offer.worker, replaced)
        except Exception:
            # The worker may ask again: the trials must not be lost. The copies will be made again, with their numbers.
            self._queue.requeue(filling)
            raise
        self._next_copy += len(copies)
        self._close(replaced)
        self._restore([trial for trial in started if trial.checkpoints])
        return started

    def _write_start(
        self, trials: Sequence[Trial], worker: str, results: Sequence[TrialResult] = ()
    ) -> tuple[Trial, ...]:
        """Write the trials as running on the worker; the same trials with their new fences."""
        if not trials:
            return ()
        fences = self._study.start(trials, worker, results)
        started = tuple(replace(trial, fence=fences[trial.number]) for trial in trials)
        for trial in started:
            self._running.put(RunningTrial(trial, worker, step=trial.parent_step))
        return started

    def _dismiss(self, offer: Offer) -> Directives:
        """Have a worker save what it trains, once; at its next exchange release its trials and dismiss it."""
        if offer.holds and offer.worker not in self._saving:
            self._saving.add(offer.worker)
            return Directives(save=True)
        self._release(self._running.of(offer.worker))
        self._leases.dismiss(offer.worker)
        return Directives(stop=tuple(one.number for one in offer.holds), done=True)

    # ---------------------------------------------------------------------------------------------------------- requeue

    def _release(self, numbers: Collection[int]) -> None:
        """Requeue trials that their worker does not train any more."""
        if numbers:
            self._requeue(numbers, self._study.release(self._running.starts(numbers)), alone=False)

    def _requeue(self, numbers: Collection[int], queued: Sequence[QueuedTrial], *, alone: bool) -> None:
        """Move trials that are written as queued from the running ones to the queue."""
        known = {one.number: one for one in queued}
        for number in sorted(numbers):
            self._requeue_one(self._remove(number).trial, known.get(number, QueuedTrial(number)), alone=alone)

    def _requeue_one(self, trial: Trial, known: QueuedTrial, *, alone: bool) -> None:
        """Queue a trial by the crashes of its workers; `alone`: nothing else can be the cause of the last one.

        A crash takes a whole pack along, so that innocent trials count it too. Hence they are not failed by number:
        the suspected one is first trained apart, and fails only when a worker crashed that trained nothing else.
        """
        trial = replace(trial, fence=0, checkpoints=known.checkpoints)
        self._crashes[trial.number] = known.crashes
        if known.crashes >= QUARANTINED_AFTER and alone:
            self._fail(trial, known.crashes)
        elif known.crashes >= QUARANTINED_AFTER:
            self._queue.quarantine(trial)
        elif known.crashes >= SUSPECTED_AFTER:
            self._queue.isolate(trial)
        else:
            self._queue.requeue([trial])

    def _fail(self, trial: Trial, crashes: int) -> None:
        """End a queued trial that crashes its workers. Only running trials can end, so it is started on no worker."""
        [started] = self._write_start([trial], _NO_WORKER)
        error = f"{crashes} workers died while they trained it, at last alone with it"
        result = TrialResult(number=trial.number, state="failed", objective=None, error=error, fence=started.fence)
        self._study.end([result])
        self._close([result])

    # ------------------------------------------------------------------------------------------------------ checkpoints

    def _save(self, offer: Offer) -> None:
        """Write the worker's checkpoints, each with what is known of its trial there, after the reports up to it."""
        saved = [
            one._replace(controller_state=self._state_of(one.number))
            for one in offer.saved
            if self._running.has(TrialStart(one.number, one.fence), offer.worker)
        ]
        if saved:
            self._study.record((), (), saved)
        for one in saved:
            if one.step > self._running[one.number].trial.checkpoint_step:
                self._crashes.pop(one.number, None)

    def _state_of(self, number: int) -> dict[str, Any]:
        return {
            "objective": self._running[number].objective,
            "monitors": [monitor.state(number) for monitor in self._monitors],
        }

    def _restore(self, trials: Sequence[Trial]) -> None:
        """Give trials and policies the state that they had at the trials' furthest checkpoints."""
        for trial in trials:
            known = max(trial.checkpoints, key=lambda one: one.step).controller_state
            assert known, "it was written with every checkpoint"
            running = self._running[trial.number]
            running.step, running.objective = trial.checkpoint_step, known["objective"]
            for monitor, state in zip(self._monitors, known["monitors"], strict=True):
                if state is not None:
                    monitor.restore(trial.number, trial.group, state)

    def _tidy(self) -> None:
        """Remove the checkpoint files that no trial resumes from."""
        if self._remove_checkpoints:
            self._remove_checkpoints(self._study.checkpoint_paths(), self._leases.workers)
