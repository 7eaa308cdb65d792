"""A fake worker and a fake memory for the controller, and an audit of what they saw."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from search.steering.controller import Controller
from search.steering.study_store import StudyStore
from spaces.records import (
    TERMINAL,
    Checkpoint,
    Directives,
    Metric,
    Offer,
    Outcome,
    QueuedTrial,
    Report,
    State,
    StoredTrial,
    Trial,
    TrialResult,
    TrialStart,
    WorkerStatus,
)
from spaces.settings import Direction
from spaces.space import Space

LENGTH = 30
"""Steps of a fake trial; it reports every 10."""


@dataclass
class Row:
    """A trial as the fake database keeps it."""

    trial: Trial
    worker: str
    fence: int = 1
    state: State = "running"
    objective: float | None = None
    reports: list[Report] = field(default_factory=list)
    terminal_events: int = 0
    crashes: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()
    """The newest first; at most two."""


class Rows(StudyStore):
    """A database in a dict, as strict as storage: what should not be written is an error here. `log` is every write."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.log: list[tuple[str, object]] = []
        self.stopping = False
        self.state = "running"
        self.ended: list[int] = []
        self.failures = 0
        self.now = 0.0
        """The database's clock."""
        self.lease_until: dict[str, float] = {}
        self.lost: set[str] = set()

    @property
    def queries(self) -> Rows:
        return self

    def _fail_if_asked(self) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the database does not answer")

    def start(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = ()) -> dict[int, int]:
        self._fail_if_asked()
        self.end(endings)
        for trial in trials:
            row = self.rows.get(trial.number)
            assert row is None or (row.state == "queued" and row.trial == trial), f"trial {trial.number} doubled"
            assert trial.checkpoints == (row.checkpoints if row else ()), "a trial goes on where its checkpoints are"
            again = replace(row, state="running", worker=worker, fence=row.fence + 1) if row else Row(trial, worker)
            self.rows[trial.number] = again
        self.log.append(("start", tuple(trial.number for trial in trials)))
        return {trial.number: self.rows[trial.number].fence for trial in trials}

    def record(self, reports: Sequence[Report], endings: Sequence[TrialResult], saved: Sequence[Checkpoint]) -> None:
        self._fail_if_asked()
        for report in reports:
            row = self.rows[report.number]
            assert (row.state, row.fence) == ("running", report.fence), f"late report on trial {report.number}"
            row.reports.append(report)
            self.log.append(("report", (report.number, report.step)))
        for checkpoint in saved:
            row = self.rows[checkpoint.number]
            assert (row.state, row.fence) == ("running", checkpoint.fence), (
                f"late checkpoint of trial {checkpoint.number}"
            )
            row.checkpoints, row.crashes = (checkpoint, *row.checkpoints)[:2], 0
        self.end(endings)

    def end(self, endings: Sequence[TrialResult]) -> None:
        self._fail_if_asked()
        for ending in endings:
            row = self.rows[ending.number]
            assert (row.state, row.fence) == ("running", ending.fence)
            row.state, row.objective, row.checkpoints = ending.state, ending.objective, ()
            row.terminal_events += 1
            self.ended.append(ending.number)
            self.log.append(("end", ending.number))

    def running(self) -> list[TrialStart]:
        return [TrialStart(n, row.fence) for n, row in sorted(self.rows.items()) if row.state == "running"]

    def release(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        for number, fence in held:
            row = self.rows[number]
            assert (row.state, row.fence) == ("running", fence), f"trial {number} is not at its start {fence}"
            furthest = max((checkpoint.step for checkpoint in row.checkpoints), default=0)
            row.state, row.reports = "queued", [report for report in row.reports if report.step <= furthest]
        return [
            QueuedTrial(start.number, self.rows[start.number].crashes, self.rows[start.number].checkpoints)
            for start in held
        ]

    def rescue(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        for start in held:
            self.rows[start.number].crashes += 1
        return self.release(held)

    def queued(self) -> list[tuple[list[StoredTrial], QueuedTrial]]:
        waiting = [(n, row) for n, row in sorted(self.rows.items()) if row.state == "queued"]
        return [(self.line(row.trial), QueuedTrial(n, row.crashes, row.checkpoints)) for n, row in waiting]

    def renew_leases(self, heard: Sequence[WorkerStatus], term: float) -> list[str]:
        for status in heard:
            if status.worker not in self.lost:
                self.lease_until[status.worker] = (
                    math.inf if status.state == "done" else self.now - status.seconds + term
                )
        self.lost |= {name for name, until in self.lease_until.items() if until < self.now}
        return sorted(self.lost)

    def line(self, trial: Trial) -> list[StoredTrial]:
        """Return what is stored of a trial and its ancestors: parent and step, and the draws of each."""
        before = [] if trial.parent is None else self.line(self.rows[trial.parent].trial)
        return [*before, StoredTrial(trial.number, trial.draws, trial.parent_step)]

    def outcomes(self, limit: int | None) -> list[Outcome]:
        assert limit is None
        ended = [self.rows[number] for number in self.ended]
        return [
            Outcome(
                number=row.trial.number,
                group=row.trial.group,
                draws=row.trial.draws,
                objective=row.objective,
                state=row.state,
            )
            for row in ended
        ]

    def reports(self, metric: str) -> list[Report]:
        return [report for number in sorted(self.rows) for report in self.rows[number].reports]

    def copy_steps(self) -> dict[int, int]:
        trials = [row.trial for row in self.rows.values() if row.trial.parent is not None]
        return {t.parent: t.parent_step for t in sorted(trials, key=lambda t: t.parent_step) if t.parent is not None}

    def next_number(self) -> int:
        return max(self.rows, default=-1) + 1

    def holes(self) -> list[range]:
        return [range(number, number + 1) for number in range(self.next_number()) if number not in self.rows]

    def counts(self) -> dict[State, int]:
        return dict(Counter(row.state for row in self.rows.values()))

    def best(self, direction: Direction) -> tuple[float, int] | None:
        sign = 1 if direction == "minimize" else -1
        known = [(sign * row.objective, n) for n, row in self.rows.items() if row.objective is not None]
        return (sign * min(known)[0], min(known)[1]) if known else None

    def stop_requested(self) -> bool:
        return self.stopping

    def set_state(self, state: str) -> None:
        self.state = state


def loss(trial: Trial, step: int) -> float:
    """Return what a fake trial reports: a pure function of the trial and the step."""
    return random.Random(f"{trial.seed}/{trial.draws}/{step}").uniform(0, 1) + 1 / step


class FakeWorker:
    """Lanes that count steps. Trials whose seed is a multiple of 7 diverge at step 20."""

    def __init__(self, name: str, lanes: int) -> None:
        self.name = name
        self.width = lanes
        self.lanes: dict[int, tuple[Trial, int]] = {}
        self.done = False

    def train(self, moving: Sequence[int]) -> list[Report]:
        """Ten steps of the lanes in `moving`."""
        reports: list[Report] = []
        for number in moving:
            trial, step = self.lanes[number]
            step += 10
            state = "diverged" if trial.seed % 7 == 0 and step == 20 else "finished" if step == LENGTH else "running"
            metrics = (Metric("tvd", "raw", "", loss(trial, step)),)
            reports.append(Report(number=number, fence=trial.fence, step=step, metrics=metrics, state=state))
            self.lanes[number] = (trial, step)
            if state != "running":
                del self.lanes[number]
        return reports

    def offer(self) -> Offer:
        """All free lanes; an empty device takes any structure."""
        structure = next((trial.structure for trial, _ in self.lanes.values()), None)
        holds = tuple(trial.start for trial, _ in self.lanes.values())
        return Offer(worker=self.name, lanes=self.width - len(self.lanes), structure=structure, holds=holds)

    def first_step(self, trial: Trial) -> int:
        """Where it goes on."""
        return trial.checkpoints[0].step if trial.checkpoints else 0

    def obey(self, directives: Directives) -> None:
        """Drop and place; a pack has one structure, and never more trials than lanes."""
        for number in directives.stop:
            self.lanes.pop(number, None)
        self.lanes.update((trial.number, (trial, self.first_step(trial))) for trial in directives.start)
        assert len({trial.structure for trial, _ in self.lanes.values()}) <= 1
        assert len(self.lanes) <= self.width
        self.done = directives.done


def finish(controller: Controller, *workers: FakeWorker, limit: int = 5000) -> None:
    """Let the workers take turns until each is told that it is done."""
    turns = 0
    while not all(worker.done for worker in workers):
        for worker in workers:
            if not worker.done:
                worker.obey(controller.exchange(worker.train(list(worker.lanes)), worker.offer()))
        turns += 1
        assert turns < limit, "the study does not end"


def audit(memory: Rows, here: Space) -> None:
    """Every number once and ended once, and what is stored is what the trial gives alone."""
    assert sorted(memory.rows) == list(range(here.search.trials))
    for row in memory.rows.values():
        assert row.terminal_events == 1
        assert row.state in TERMINAL
        steps = [report.step for report in row.reports]
        assert steps == [10, 20, 30][: len(steps)]
        assert all(report.metrics[0].value == loss(row.trial, report.step) for report in row.reports)
        best = min((loss(row.trial, step) for step in steps), default=None)
        assert row.objective == (None if row.state == "diverged" else best)
        assert row.state != "finished" or len(steps) == 3


SAMPLERS = ["random", "qmc", "{tpe: {startup: 4}}", "{nsga2: {population: 4}}", "{cmaes: {population: 4}}"]
POLICIES = ["[]", "{patience: {steps: 10}}", "{asha: {min_steps: 10, eta: 2}}", "{median: {trials: 3, steps: 10}}"]
