"""The running trials of a study: events are written first, and then acted on.

Nothing that a sampler or a stopping policy has seen can be lost: both learn only what the study's
store has committed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, final

from search.objectives import NO_RATING, Rating, rating_after
from search.samplers import Strategy
from search.steering.running_trials import RunningTrial, RunningTrials
from search.steering.study_store import StudyStore
from search.steering.time_left import Pace
from search.stopping import Copy, Monitor
from spaces.records import (
    TERMINAL,
    Checkpoint,
    Offer,
    Outcome,
    Report,
    State,
    Trial,
    TrialResult,
    TrialStart,
    is_feasible,
)

if TYPE_CHECKING:
    from spaces.space import Space


@final
class Ledger:
    """Starts, reports, results and checkpoints: each is written, then told to the sampler."""

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        monitors: Sequence[Monitor],
        study: StudyStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._space = space
        self._strategy = strategy
        self._monitors = monitors
        self._study = study
        self._clock = clock
        self.pace = Pace()
        """The speed of trials, for the time that is left."""
        self.running = RunningTrials()
        self.ended: Counter[State] = Counter(
            {state: count for state, count in study.queries.counts().items() if state in TERMINAL}
        )
        """The number of trials that ended in each state."""
        self.best = study.queries.best(space.search.objective.direction)
        """The best objective so far and its trial; None before the first one."""
        self.reports = 0
        """Reports written by this controller."""
        self.steps = 0
        """Optimizer steps in these reports."""

    @property
    def makes_copies(self) -> bool:
        """True if a stopping policy makes copies of trials."""
        return any(monitor.makes_copies for monitor in self._monitors)

    def current(self, reports: Sequence[Report], worker: str) -> list[Report]:
        """Return the reports on starts that the worker holds, none after a trial's last one."""
        current: list[Report] = []
        ended: set[int] = set()
        for report in reports:
            start = TrialStart(report.number, report.fence)
            if not self.running.has(start, worker) or report.number in ended:
                continue
            current.append(report)
            if report.state != "running":
                ended.add(report.number)
        return current

    def record(self, reports: Sequence[Report]) -> list[TrialResult]:
        """Write the reports with the results that they imply; return those results.

        Running trials change only after the write: if it fails, the same reports may come again.
        """
        if not reports:
            return []
        ratings = {report.number: self.running[report.number].rating for report in reports}
        results: list[TrialResult] = []
        for report in reports:
            search, trial = self._space.search_of(report.number), self.running[report.number].trial
            rating = rating_after(search, ratings[report.number], trial, report)
            ratings[report.number] = rating
            if report.state != "running":
                result = TrialResult(
                    number=report.number,
                    state=report.state,
                    error=report.error,
                    fence=report.fence,
                    **asdict(rating if report.state == "finished" else NO_RATING),
                )
                results.append(result)
        # By number, the order in which outcomes of one moment are read again after a restart.
        results.sort(key=lambda result: result.number)
        self._study.record(reports, results, ())
        for report in reports:
            running = self.running[report.number]
            running.rating = ratings[report.number]
            self.steps += max(0, report.step - running.step)
            running.step, running.reported = max(running.step, report.step), self._clock()
            running.splines = report.splines
        self.reports += len(reports)
        return results

    def close_and_prune(self, reports: Sequence[Report], results: Sequence[TrialResult]) -> None:
        """Tell policies and sampler, close trials that ended, and end those that a policy stops."""
        observed = self._observed(reports)
        groups = {report.number: self.running[report.number].trial.group for report in observed}
        stopped = set[int]().union(*(monitor.observe(observed, groups) for monitor in self._monitors))
        self.close(results)
        pruned = [self.prune_result(number) for number in sorted(stopped & self.running.numbers())]
        if pruned:
            self._study.end(pruned)
            self.close(pruned)

    def _observed(self, reports: Sequence[Report]) -> list[Report]:
        """Return the reports on running trials that policies learn from.

        A trial whose checkpoint files are lost trains from an earlier step than policies know it to; what
        it reports again must not count twice. Trials that must train to their end are left out.
        """
        return [
            report
            for report in reports
            if report.step > self.running[report.number].first_step and not self._space.trains_to_end(report.number)
        ]

    def prune_result(self, number: int) -> TrialResult:
        """Return the result of a running trial that is pruned now."""
        running = self.running[number]
        reached = asdict(running.rating)
        return TrialResult(number=number, state="pruned", fence=running.trial.fence, **reached)

    def close(self, results: Sequence[TrialResult]) -> None:
        """Forget trials whose results are written, after the sampler has learned from them."""
        outcomes: list[Outcome] = []
        objective = self._space.search.objective
        for result in results:
            ended = self.remove(result.number)
            self.pace.note_end(ended, self._clock())
            self.ended[result.state] += 1
            if (
                result.objective is not None
                and is_feasible(result.constraints)
                and (self.best is None or objective.is_better(result.objective, self.best[0]))
            ):
                self.best = result.objective, result.number
            # A copy's objective is not owed to its draws alone, so that no sampler learns from it.
            if not ended.trial.lineage:
                outcomes.append(
                    Outcome(
                        number=result.number,
                        group=ended.trial.group,
                        draws=ended.trial.draws,
                        objective=result.objective,
                        state=result.state,
                        splines=ended.splines,
                        second_objective=result.second_objective,
                        constraints=result.constraints,
                    )
                )
        if outcomes:
            self._strategy.tell(outcomes)

    def remove(self, number: int) -> RunningTrial:
        """Take a trial from the running ones, and return it."""
        for monitor in self._monitors:
            monitor.forget(number)
        return self.running.pop(number)

    def copies(self, reports: Sequence[Report], worker: str, first: int) -> Sequence[Copy]:
        """Return unwritten copies that take lanes of the worker's pack, numbered from `first`."""
        if not reports:
            return ()
        trials = {number: self.running[number] for number in self.running.of(worker)}
        pack = {number: (running.trial, running.step) for number, running in trials.items()}
        held = [report for report in reports if report.number in pack]
        reported = {report.number for report in self._observed(held)}
        # At most one policy makes copies (`begin_policies`), so that numbers never collide.
        return [copy for monitor in self._monitors for copy in monitor.copies(self._space, pack, reported, first)]

    def start(self, trials: Sequence[Trial], worker: str, results: Sequence[TrialResult] = ()) -> tuple[Trial, ...]:
        """Write the trials as running on the worker; return them with their new fences."""
        if not trials:
            return ()
        # Written before the worker is told: after a crash the rows say who had the trials.
        fences = self._study.start(trials, worker, results)
        started = tuple(replace(trial, fence=fences[trial.number]) for trial in trials)
        for trial in started:
            step = trial.parent_step
            now = self._clock()
            self.running.put(RunningTrial(trial, worker, step=step, first_step=step, started=now))
            self.pace.note_start(trial)
        return started

    def save(self, offer: Offer) -> list[Checkpoint]:
        """Write the worker's checkpoints, after its reports; return those of current starts."""
        saved = [
            checkpoint._replace(controller_state=self._state_of(checkpoint.number))
            for checkpoint in offer.saved
            if self.running.has(TrialStart(checkpoint.number, checkpoint.fence), offer.worker)
        ]
        if saved:
            self._study.record((), (), saved)
        return saved

    def restore(self, trials: Sequence[Trial]) -> None:
        """Give trials and policies the state that they had at the trials' furthest checkpoints."""
        for trial in trials:
            known = max(trial.checkpoints, key=lambda checkpoint: checkpoint.step).controller_state
            assert known, "it was written with every checkpoint"
            running = self.running[trial.number]
            running.step = running.first_step = trial.checkpoint_step
            running.rating = Rating(**{name: known.get(name) for name in _RATING})
            for monitor, state in zip(self._monitors, known["monitors"], strict=True):
                if state is not None:
                    monitor.restore(trial.number, trial.group, state)

    def _state_of(self, number: int) -> dict[str, Any]:
        return {
            **asdict(self.running[number].rating),
            "monitors": [monitor.state(number) for monitor in self._monitors],
        }


_RATING = [field.name for field in fields(Rating)]
"""Fields of a rating in a checkpoint; one of an older Graft has the objective alone."""
