"""The controller: the one seam between those who train and the search that steers them.

`exchange` takes reports and an offer of free lanes and answers with directives. It records first and decides then:
nothing that a sampler, a stopping policy or a screen has seen can be lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from search.memory import Memory
from search.objectives import Wanted, better, objective_after
from search.samplers import Strategy
from search.staged import begin
from search.stopping import Breeder, Monitor
from search.stopping._measures import RememberingMonitor
from search.supply import Supply
from spaces.errors import StudyError
from spaces.records import TERMINAL, Architecture, Directives, Ending, Offer, Outcome, Report, State, Trial
from spaces.settings import Objective
from spaces.transfer import TransferSpace

if TYPE_CHECKING:
    from spaces.space import Space


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
    stopping: bool
    """Whether workers are being sent home before the study is done."""


@dataclass(slots=True)
class _Lane:
    """A running trial and what its reports have said so far."""

    trial: Trial
    worker: str
    step: int = 0
    objective: float | None = None
    architectures: tuple[Architecture, ...] = ()


@final
class Controller:
    """Steers one study. One thread at a time may call it, and it alone may write to its memory.

    Trials are written as running before a worker hears of them, and as ended before anyone acts on it. Reports on
    trials that their worker does not hold are ignored.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        monitors: Sequence[Monitor],
        memory: Memory,
        *,
        queued: Sequence[Trial] = (),
    ) -> None:
        """`queued`: what `memory` has of trials that wait to be started again; none may be running.

        The numbers below `space.search.trials` that were never started are new.
        """
        self._space = space
        self._objective: Objective = space.search.objective
        self._wanted = Wanted()
        self._planned = space.search.trials
        self._strategy = strategy
        self._monitors = monitors
        self._breeders = [monitor for monitor in monitors if isinstance(monitor, Breeder)]
        self._memory = memory
        self._lanes: dict[int, _Lane] = {}
        self._stops: defaultdict[str, set[int]] = defaultdict(set)
        """Trials that ended by our verdict, by the worker that has yet to hear of it."""
        self._next_copy = max(self._planned, memory.created())
        self._supply = Supply(strategy, self._new_numbers(), queued)
        self._ended: Counter[State] = Counter(
            {state: count for state, count in memory.counts().items() if state in TERMINAL}
        )
        self._best = memory.best(self._objective.direction)
        self._reports = 0
        self._steps = 0
        self._stopping = False

    @classmethod
    def begin(cls, space: Space, memory: Memory) -> Self:
        """The controller of a study that is new or goes on.

        Trials that were running when the last controller went away are queued again. The sampler learns every outcome
        and which trials are open; stopping policies that compare with ended trials see the reports of these again.
        """
        memory.requeue(None)
        queued = [space.restore(stages) for stages in memory.queued()]
        monitors = [policy.begin(space.search.objective) for policy in space.search.stopping]
        _check_together(monitors)
        remembering = [monitor for monitor in monitors if isinstance(monitor, RememberingMonitor)]
        if remembering and space.search.history == "last":
            raise StudyError("search.history: 'last' forgets what stopping policies compare with; use thin or full")
        # The draws of a million trials take seconds and gigabytes: they are read for those alone who look at them.
        learns = space.search.sampler.learns or isinstance(space, TransferSpace)
        ended = memory.outcomes(None) if learns or remembering else []
        strategy = begin(space, _drawn(space, ended, queued))
        groups = {outcome.number: outcome.group for outcome in ended}
        for monitor in remembering if ended else ():
            monitor.recall(memory.reports(monitor.measure.name), groups)
        for monitor in monitors:
            if isinstance(monitor, Breeder):
                monitor.recall(memory.copied())
        return cls(space, strategy, monitors, memory, queued=queued)

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record a worker's reports, decide, and fill its free lanes.

        What the memory raises goes through; the run is over then, and a new controller goes on from what was written.
        """
        accepted = self._accepted(reports, offer.worker)
        self._wanted.check((self._space.objective_of(report.number), report) for report in accepted)
        self._judge(accepted, self._record(accepted, offer.worker))
        self._return_dropped(offer)
        if offer.structure is None and offer.lanes:
            # An empty device: what it should hold died with the worker that had its name before.
            self._return_lanes(offer.worker)
        self._stopping = self._stopping or self._memory.stop_requested()
        if self._stopping:
            dropped = self._return_lanes(offer.worker) | self._stops.pop(offer.worker, set())
            return Directives(stop=tuple(sorted(dropped)), done=True)
        start = self._start(offer, self._lanes_of(offer, reports), *self._breed(accepted, offer.worker))
        stop = tuple(sorted(self._stops.pop(offer.worker, ())))
        rounds = self._supply.waiting / max(1, len(self._lanes))
        return Directives(stop=stop, start=start, done=self._supply.empty and not self._lanes, rounds=rounds)

    def request_stop(self) -> None:
        """Every worker that exchanges from now on is sent home; what it trains goes back in the queue."""
        self._stopping = True

    def lost(self, worker: str) -> None:
        """The worker is gone: its trials go back in the queue and start again elsewhere, with the same numbers."""
        self._return_lanes(worker)
        self._stops.pop(worker, None)

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
            lane = self._lanes.get(report.number)
            if lane is None or lane.worker != worker or report.number in over:
                continue
            accepted.append(report)
            if report.state != "running":
                over.add(report.number)
        return accepted

    def _record(self, reports: Sequence[Report], worker: str) -> list[Ending]:
        """Write the reports with the endings that they imply; those endings."""
        if not reports:
            return []
        objectives = {report.number: self._lanes[report.number].objective for report in reports}
        for report in reports:
            objectives[report.number] = objective_after(
                self._space.objective_of(report.number), objectives[report.number], report
            )
        endings = [
            Ending(
                number=report.number,
                state=report.state,
                objective=objectives[report.number] if report.state == "finished" else None,
                error=report.error,
            )
            for report in reports
            if report.state != "running"
        ]
        self._memory.record(worker, reports, endings)
        for report in reports:
            lane = self._lanes[report.number]
            lane.objective = objectives[report.number]
            self._steps += max(0, report.step - lane.step)
            lane.step = max(lane.step, report.step)
            lane.architectures = report.architectures
        self._reports += len(reports)
        return endings

    def _judge(self, reports: Sequence[Report], endings: Sequence[Ending]) -> None:
        """Let the stopping policies and the sampler see what is recorded."""
        groups = {report.number: self._lanes[report.number].trial.group for report in reports}
        verdicts = set[int]().union(*(monitor.observe(reports, groups) for monitor in self._monitors))
        self._close(endings)
        pruned = [
            Ending(number=number, state="pruned", objective=self._lanes[number].objective)
            for number in sorted(verdicts & self._lanes.keys())
        ]
        if pruned:
            self._memory.end(pruned)
            self._stop(pruned)

    def _breed(self, reports: Sequence[Report], worker: str) -> tuple[list[Ending], list[Trial]]:
        """Trials of the worker's pack that make room for copies of better ones, and the copies; nothing is done yet."""
        if not self._breeders or not reports:
            return [], []
        [breeder] = self._breeders
        running = {number: lane for number, lane in self._lanes.items() if lane.worker == worker}
        losers, parents = breeder.select({report.number for report in reports} & running.keys(), running)
        candidates = [(running[number].trial, running[number].step) for number in parents]
        numbers = range(self._next_copy, self._next_copy + len(losers))
        endings = [Ending(number=number, state="pruned", objective=running[number].objective) for number in losers]
        return endings, [breeder.child(self._space, number, candidates) for number in numbers]

    def _stop(self, endings: Sequence[Ending]) -> None:
        """Have the workers told of verdicts that are written."""
        for ending in endings:
            self._stops[self._lanes[ending.number].worker].add(ending.number)
        self._close(endings)

    def _close(self, endings: Sequence[Ending]) -> None:
        """Forget trials whose endings are written, but for what they teach."""
        outcomes: list[Outcome] = []
        for ending in endings:
            lane = self._lanes.pop(ending.number)
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
            for monitor in self._monitors:
                monitor.forget(ending.number)
        if outcomes:
            self._strategy.tell(outcomes)

    def _note_best(self, outcome: Outcome) -> None:
        if outcome.objective is None:
            return
        if self._best is None or better(self._objective, outcome.objective, self._best[0]):
            self._best = outcome.objective, outcome.number

    def _return_lanes(self, worker: str) -> set[int]:
        """Put what the worker holds back in the queue; its numbers."""
        held = {number for number, lane in self._lanes.items() if lane.worker == worker}
        if held:
            self._memory.requeue(worker)
        self._requeue(held)
        return held

    def _return_dropped(self, offer: Offer) -> None:
        """Put the trials that a worker could not keep back in the queue."""
        lanes = {number: self._lanes.get(number) for number in offer.dropped}
        held = {number for number, lane in lanes.items() if lane and lane.worker == offer.worker}
        if held:
            self._memory.requeue(offer.worker, held)
        self._requeue(held)

    def _requeue(self, held: Collection[int]) -> None:
        """Hand out again trials that are written as queued."""
        for number in sorted(held):
            self._supply.give_back([self._lanes.pop(number).trial])
            for monitor in self._monitors:
                monitor.forget(number)

    def _lanes_of(self, offer: Offer, reports: Sequence[Report]) -> int:
        """Lanes to fill: the free ones, and those of trials that the worker is about to be told to stop."""
        if offer.structure is None:
            return offer.lanes
        free = {report.number for report in reports if report.state != "running"}.union(offer.dropped)
        return offer.lanes + len(self._stops[offer.worker] - free)

    def _start(self, offer: Offer, lanes: int, endings: Sequence[Ending], copies: Sequence[Trial]) -> tuple[Trial, ...]:
        """The copies that take the lanes of these endings, and trials for the other lanes; written as running."""
        filling = self._supply.take(offer.structure, lanes)
        trials = (*copies, *filling)
        if trials:
            try:
                self._memory.start(trials, offer.worker, endings)
            except Exception:
                self._supply.give_back(filling)
                raise
        self._next_copy += len(copies)
        self._stop(endings)
        self._lanes.update((trial.number, _Lane(trial, offer.worker, step=trial.parent_step)) for trial in trials)
        return trials


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
