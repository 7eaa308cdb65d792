"""The controller: the one seam between those who train and the search that steers them.

`exchange` takes reports and an offer of free lanes and answers with directives. It records first and decides then:
nothing that a sampler, a stopping policy or a screen has seen can be lost.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, final

from search.objectives import Wanted, better, objective_after
from search.samplers import Strategy
from search.steering.lanes import Lane, Lanes
from search.steering.leases import Leases
from search.steering.memory import Memory
from search.steering.staged import begin
from search.steering.supply import Supply
from search.stopping import Breeder, Monitor
from search.stopping._measures import RememberingMonitor
from spaces.errors import StudyError
from spaces.records import (
    TERMINAL,
    Directives,
    Offer,
    Outcome,
    QueuedTrial,
    Report,
    State,
    Trial,
    TrialResult,
    TrialStart,
)
from spaces.settings import Objective
from spaces.transfer import TransferSpace

if TYPE_CHECKING:
    from spaces.space import Space

SUSPECTED_AFTER = 3
"""A trial with which so many workers died since its last checkpoint has the next empty device to itself."""
QUARANTINED_AFTER = 5
"""A trial with which so many died, at last alone with it, has failed. A launch that died counts if nothing else was in
training, and then there must be one more: who ends a launch may have had other reasons."""
_NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a study stands, for a live display."""

    planned: int
    """Trials of the whole study, copies of a population made so far included; a grid may have fewer."""
    counts: Mapping[State, int]
    """Trials by state; one that has never been started is in none. `running` is the number of busy lanes."""
    best: float | None
    """The best objective of all trials that ended, in the user's direction."""
    best_number: int | None
    reports: int
    """Reports recorded by this controller."""
    steps: int
    """Optimizer steps that these reports stand for, summed over trials."""
    lane_steps: int
    """Training steps that workers told of, summed over lanes."""
    lane_room: int
    """What these would have been with no lane free."""
    stopping: bool
    """Whether workers are being sent home before the study is done."""


@final
class Controller:
    """Steers one study. One thread at a time may call it, and it alone may write to its memory.

    Trials are written as running before a worker hears of them, and as ended before anyone acts on it. Whatever a
    worker says of a trial comes with the fence of its start: what is not the newest start of it is ignored, and the
    worker is told to drop it. While another call is under way, `renew`, `progress` and `request_stop` may be called.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        monitors: Sequence[Monitor],
        memory: Memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The numbers below `space.search.trials` that were never started are new; `begin` adds those that wait."""
        self._space = space
        self._objective: Objective = space.search.objective
        self._wanted = Wanted()
        self._planned = space.search.trials
        self._strategy = strategy
        self._monitors = monitors
        self._breeders = [monitor for monitor in monitors if isinstance(monitor, Breeder)]
        self._memory = memory
        self._leases = Leases(memory, clock)
        self._lanes = Lanes()
        self._deaths: dict[int, int] = {}
        """Workers that died with a trial, for those that were started before."""
        self._saving: set[str] = set()
        """Who was asked to write a checkpoint before it goes home."""
        self._next_copy = max(self._planned, memory.created())
        self._supply = Supply(strategy, self._new_numbers())
        self._ended: Counter[State] = Counter(
            {state: count for state, count in memory.counts().items() if state in TERMINAL}
        )
        self._best = memory.best(self._objective.direction)
        self._reports = 0
        self._steps = 0
        self._stopping = False

    @classmethod
    def begin(cls, space: Space, memory: Memory, clock: Callable[[], float] = time.monotonic) -> Self:
        """The controller of a study that is new or goes on.

        Trials that were running when the last controller went away are queued again. The sampler learns every outcome
        and which trials are open; stopping policies that compare with ended trials see the reports of these again.
        """
        left = memory.running()
        (memory.rescue if len(left) == 1 else memory.release)(left)
        queued = [(space.restore(stages), waiting) for stages, waiting in memory.queued()]
        monitors = [policy.begin(space.search.objective) for policy in space.search.stopping]
        _check_together(monitors)
        remembering = [monitor for monitor in monitors if isinstance(monitor, RememberingMonitor)]
        if remembering and space.search.history == "last":
            raise StudyError("search.history: 'last' forgets what stopping policies compare with; use thin or full")
        # The draws of a million trials take seconds and gigabytes: they are read for those alone who look at them.
        learns = space.search.sampler.learns or isinstance(space, TransferSpace)
        ended = memory.outcomes(None) if learns or remembering else []
        strategy = begin(space, _drawn(space, ended, [trial for trial, _ in queued]))
        groups = {outcome.number: outcome.group for outcome in ended}
        for monitor in remembering if ended else ():
            monitor.recall(memory.reports(monitor.measure.name), groups)
        for monitor in monitors:
            if isinstance(monitor, Breeder):
                monitor.recall(memory.copied())
        controller = cls(space, strategy, monitors, memory, clock)
        for trial, waiting in queued:
            alone = [one.number for one in left] == [trial.number]
            controller._take_back(trial, waiting, alone=alone and waiting.crashes > QUARANTINED_AFTER)
        return controller

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record a worker's reports, decide, and fill its free lanes.

        What the memory raises goes through; the run is over then, and a new controller goes on from what was written.
        """
        if not self._leases.admit(offer):
            return Directives(lease_lost=True)
        accepted = self._accepted(reports, offer.worker)
        self._wanted.check((self._space.objective_of(report.number), report) for report in accepted)
        self._judge(accepted, self._record(accepted))
        self._save(offer)
        self._give_back(self._lanes.of(offer.worker) - {one.number for one in offer.holds})
        self._stopping = self._stopping or self._memory.stop_requested()
        if self._stopping:
            return self._send_home(offer)
        start = self._start(offer, self._lanes_of(offer), *self._breed(accepted, offer.worker))
        stop = tuple(one.number for one in offer.holds if not self._lanes.has(one, offer.worker))
        rounds = self._supply.waiting / max(1, len(self._lanes))
        done = self._supply.empty and not self._lanes
        if done:
            self._leases.dismiss(offer.worker)
        return Directives(stop=stop, start=start, done=done, rounds=rounds)

    def request_stop(self) -> None:
        """Every worker that exchanges from now on is sent home; what it trains goes back in the queue."""
        self._stopping = True

    def renew(self, worker: str) -> bool:
        """A worker lives; False if its lease ran out. May be called at any time, from any thread."""
        return self._leases.renew(worker)

    def sweep(self) -> None:
        """To be called every second or so: every ten, workers that fell silent a minute ago lose their trials."""
        for worker in self._leases.sweep():
            self.handle_departure(worker)

    def handle_crash(self, worker: str) -> None:
        """The worker's process died: its trials start again elsewhere, to the same numbers; one may be why."""
        self._leases.drop(worker)
        numbers = self._lanes.of(worker)
        if numbers:
            self._requeue(numbers, self._memory.rescue(self._lanes.held(numbers)), alone=len(numbers) == 1)

    def handle_departure(self, worker: str) -> None:
        """The worker's machine is gone, or cannot be reached, which is no trial's doing; as `lost` but for that."""
        self._leases.drop(worker)
        self._give_back(self._lanes.of(worker))

    def close(self) -> None:
        """Write what was last heard of workers."""
        self._leases.write()

    def progress(self) -> Progress:
        """Where the study stands; costs nothing that grows with it."""
        best, number = self._best or (None, None)
        return Progress(
            planned=self._next_copy if self._breeders else self._planned,
            counts={**self._ended, "running": len(self._lanes), "queued": self._supply.queued},
            best=best,
            best_number=number,
            reports=self._reports,
            steps=self._steps,
            lane_steps=self._leases.steps,
            lane_room=self._leases.room,
            stopping=self._stopping,
        )

    def _new_numbers(self) -> list[range]:
        """The numbers never started: holes left by trials that were asked for and only held, then the rest."""
        holes = [range(hole.start, min(hole.stop, self._planned)) for hole in self._memory.holes()]
        return [*holes, range(self._memory.created(), self._planned)]

    def _accepted(self, reports: Sequence[Report], worker: str) -> list[Report]:
        """The reports on trials that the worker holds, none after a trial's last."""
        accepted: list[Report] = []
        over: set[int] = set()
        for report in reports:
            if not self._lanes.has(TrialStart(report.number, report.fence), worker) or report.number in over:
                continue
            accepted.append(report)
            if report.state != "running":
                over.add(report.number)
        return accepted

    def _record(self, reports: Sequence[Report]) -> list[TrialResult]:
        """Write the reports with the endings that they imply; those endings."""
        if not reports:
            return []
        objectives = {report.number: self._lanes[report.number].objective for report in reports}
        for report in reports:
            objectives[report.number] = objective_after(
                self._space.objective_of(report.number), objectives[report.number], report
            )
        endings = [
            TrialResult(
                number=report.number,
                state=report.state,
                objective=objectives[report.number] if report.state == "finished" else None,
                error=report.error,
                fence=report.fence,
            )
            for report in reports
            if report.state != "running"
        ]
        self._memory.record(reports, endings, ())
        for report in reports:
            lane = self._lanes[report.number]
            lane.objective = objectives[report.number]
            self._steps += max(0, report.step - lane.step)
            lane.step = max(lane.step, report.step)
            lane.architectures = report.architectures
        self._reports += len(reports)
        return endings

    def _judge(self, reports: Sequence[Report], endings: Sequence[TrialResult]) -> None:
        """Let the stopping policies and the sampler see what is recorded."""
        groups = {report.number: self._lanes[report.number].trial.group for report in reports}
        verdicts = set[int]().union(*(monitor.observe(reports, groups) for monitor in self._monitors))
        self._close(endings)
        pruned = [self._pruned(number) for number in sorted(verdicts & self._lanes.numbers())]
        if pruned:
            self._memory.end(pruned)
            self._close(pruned)

    def _pruned(self, number: int) -> TrialResult:
        lane = self._lanes[number]
        return TrialResult(number=number, state="pruned", objective=lane.objective, fence=lane.trial.fence)

    def _breed(self, reports: Sequence[Report], worker: str) -> tuple[list[TrialResult], list[Trial]]:
        """Trials of the worker's pack that make room for copies of better ones, and the copies; nothing is done yet."""
        if not self._breeders or not reports:
            return [], []
        [breeder] = self._breeders
        running = {number: self._lanes[number] for number in self._lanes.of(worker)}
        losers, parents = breeder.select({report.number for report in reports} & running.keys(), running)
        candidates = [(running[number].trial, running[number].step) for number in parents]
        numbers = range(self._next_copy, self._next_copy + len(losers))
        return [self._pruned(number) for number in losers], [
            breeder.child(self._space, number, candidates) for number in numbers
        ]

    def _close(self, endings: Sequence[TrialResult]) -> None:
        """Forget trials whose endings are written, but for what they teach."""
        outcomes: list[Outcome] = []
        for ending in endings:
            lane = self._leave(ending.number)
            trial = lane.trial
            outcome = Outcome(
                number=trial.number,
                group=trial.group,
                draws=trial.draws,
                objective=ending.objective,
                state=ending.state,
                architectures=lane.architectures,
            )
            if not trial.lineage:
                outcomes.append(outcome)
            self._ended[ending.state] += 1
            self._note_best(outcome)
            self._deaths.pop(ending.number, None)
        if outcomes:
            self._strategy.tell(outcomes)

    def _note_best(self, outcome: Outcome) -> None:
        if outcome.objective is None:
            return
        if self._best is None or better(self._objective, outcome.objective, self._best[0]):
            self._best = outcome.objective, outcome.number

    def _leave(self, number: int) -> Lane:
        """The lane of a trial that is not in training any more."""
        for monitor in self._monitors:
            monitor.forget(number)
        return self._lanes.pop(number)

    def _send_home(self, offer: Offer) -> Directives:
        """Have the worker save what it trains, once, and then put it back in the queue."""
        if offer.holds and offer.worker not in self._saving:
            self._saving.add(offer.worker)
            return Directives(save=True)
        self._give_back(self._lanes.of(offer.worker))
        self._leases.dismiss(offer.worker)
        return Directives(stop=tuple(one.number for one in offer.holds), done=True)

    def _give_back(self, numbers: Collection[int]) -> None:
        """Put trials that their worker does not train back in the queue."""
        if numbers:
            self._requeue(numbers, self._memory.release(self._lanes.held(numbers)), alone=False)

    def _requeue(self, numbers: Collection[int], waiting: Sequence[QueuedTrial], *, alone: bool) -> None:
        """Hand out again trials that are written as queued."""
        known = {one.number: one for one in waiting}
        for number in sorted(numbers):
            self._take_back(self._leave(number).trial, known.get(number, QueuedTrial(number)), alone=alone)

    def _take_back(self, trial: Trial, waiting: QueuedTrial, *, alone: bool) -> None:
        """A trial that waits goes on from its checkpoints; `alone`: nothing else can be why a worker died with it."""
        trial = replace(trial, fence=0, checkpoints=waiting.checkpoints)
        self._deaths[trial.number] = waiting.crashes
        if waiting.crashes >= QUARANTINED_AFTER and alone:
            self._condemn(trial, waiting.crashes)
        elif waiting.crashes >= QUARANTINED_AFTER:
            self._supply.quarantine(trial)
        elif waiting.crashes >= SUSPECTED_AFTER:
            self._supply.isolate(trial)
        else:
            self._supply.give_back([trial])

    def _condemn(self, trial: Trial, deaths: int) -> None:
        """End a trial that takes its workers along; nobody trains it meanwhile."""
        [started] = self._written([trial], _NOBODY, ())
        error = f"{deaths} workers died while they trained it, at last alone with it"
        ending = TrialResult(number=trial.number, state="failed", objective=None, error=error, fence=started.fence)
        self._memory.end([ending])
        self._close([ending])

    def _lanes_of(self, offer: Offer) -> int:
        """Lanes to fill: free ones, and those of trials that the worker is told to stop; beside a suspect none."""
        if any(self._deaths.get(number, 0) >= SUSPECTED_AFTER for number in self._lanes.of(offer.worker)):
            return 0
        if offer.structure is None:
            return offer.lanes
        return offer.lanes + sum(not self._lanes.has(one, offer.worker) for one in offer.holds)

    def _start(
        self, offer: Offer, lanes: int, endings: Sequence[TrialResult], copies: Sequence[Trial]
    ) -> tuple[Trial, ...]:
        """The copies that take the lanes of these endings, and trials for the other lanes; written as running."""
        filling = self._supply.take(offer.structure, lanes)
        if not filling and not self._lanes and offer.structure is None and offer.lanes:
            filling = self._supply.last()
        try:
            started = self._written((*copies, *filling), offer.worker, endings)
        except Exception:
            self._supply.give_back(filling)
            raise
        self._next_copy += len(copies)
        self._close(endings)
        self._recall([trial for trial in started if trial.checkpoints])
        return started

    def _written(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult]) -> tuple[Trial, ...]:
        """The trials with their fences, written as running on the worker."""
        if not trials:
            return ()
        fences = self._memory.start(trials, worker, endings)
        started = tuple(replace(trial, fence=fences[trial.number]) for trial in trials)
        for trial in started:
            self._lanes.put(Lane(trial, worker, step=trial.parent_step))
        return started

    def _save(self, offer: Offer) -> None:
        """Write the worker's checkpoints, each with what is known of its trial there, after the reports up to it."""
        saved = [
            one._replace(controller_state=self._known(one.number))
            for one in offer.saved
            if self._lanes.has(TrialStart(one.number, one.fence), offer.worker)
        ]
        if saved:
            self._memory.record((), (), saved)
        for one in saved:
            if one.step > _furthest(self._lanes[one.number].trial):
                self._deaths.pop(one.number, None)

    def _known(self, number: int) -> dict[str, Any]:
        return {
            "objective": self._lanes[number].objective,
            "monitors": [monitor.state(number) for monitor in self._monitors],
        }

    def _recall(self, trials: Sequence[Trial]) -> None:
        """Know of trials that go on what was known at their furthest checkpoints."""
        for trial in trials:
            known = max(trial.checkpoints, key=lambda one: one.step).controller_state
            assert known, "it was written with every checkpoint"
            lane = self._lanes[trial.number]
            lane.step, lane.objective = _furthest(trial), known["objective"]
            for monitor, state in zip(self._monitors, known["monitors"], strict=True):
                if state is not None:
                    monitor.restore(trial.number, trial.group, state)


def _furthest(trial: Trial) -> int:
    """The step of its furthest checkpoint; 0 if it has none."""
    return max((one.step for one in trial.checkpoints), default=0)


def _drawn(space: Space, ended: Sequence[Outcome], queued: Sequence[Trial]) -> list[Outcome]:
    """What a sampler learns again: copies of a population, which no sampler drew, are left out."""
    opened = [
        Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=None, state="queued")
        for trial in queued
    ]
    return [outcome for outcome in (*ended, *opened) if outcome.number < space.search.trials]


def _check_together(monitors: Sequence[Monitor]) -> None:
    """Raise StudyError for policies that cannot work side by side."""
    others = [monitor for monitor in monitors if isinstance(monitor, Breeder | RememberingMonitor)]
    if len(others) > 1 and any(isinstance(monitor, Breeder) for monitor in others):
        raise StudyError(
            "search.stopping: population stands alone or with patience; its copies start where others compare"
        )
