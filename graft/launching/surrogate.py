"""Launches with `--surrogate`: models fitted to a table of trials replace the training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from graft.plugins.families import families
from graft.stored.fingerprints import SURROGATE
from search.analysis.surrogate import Fit, TaskModel, assess
from search.samplers._features import flatten
from spaces import parse
from spaces.errors import StudyError
from spaces.progress import Progress
from spaces.records import Fingerprint, Metric, Offer, Report, Trial, TrialStart
from spaces.settings import Objective
from workers.numerics.version import NUMERICS

if TYPE_CHECKING:
    from workers.pool import Steering

LANES = 32
"""Trials that run side by side without `--pack`."""


class TableTask(NamedTuple):
    """A task of a table."""

    name: str
    config: Mapping[str, Any]
    model: str
    objective: Objective


@dataclass(frozen=True)
class TrialTable:
    """A folder with the two Parquet files that `python -m benchmarks.table collect` writes."""

    folder: Path

    @cached_property
    def trials(self) -> pl.DataFrame:
        """A row for each trial."""
        return self._read("trials")

    @cached_property
    def _metrics(self) -> pl.DataFrame:
        return self._read("metrics")

    def _read(self, name: str) -> pl.DataFrame:
        try:
            return pl.read_parquet(self.folder / f"{name}.parquet")
        except (OSError, pl.exceptions.PolarsError) as error:
            raise StudyError(f"{self.folder} is no table of trials: {' '.join(str(error).split())}") from None

    @cached_property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of both files."""
        files = (self.folder / f"{name}.parquet" for name in ("trials", "metrics"))
        digests = (hashlib.sha256(file.read_bytes()).digest() for file in files)
        return hashlib.sha256(b"".join(digests)).hexdigest()[:16]

    @cached_property
    def tasks(self) -> Mapping[str, TableTask]:
        """The table's tasks by name, each as the space of its first trial has it."""
        firsts = self.trials.group_by("task", maintain_order=True).first()
        tasks: dict[str, TableTask] = {}
        for name, text in firsts.select("task", "space").iter_rows():
            space = parse(text, f"the table's {name}", families(), {})
            # Any coordinates do, as a table's spaces draw neither task nor model.
            config = space.sample(0, lambda _: 0.5).config
            tasks[name] = TableTask(name, config["task"], config["model"]["name"], space.search.objective)
        return tasks

    def rows_of(self, task: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the trials and the metrics of a task."""
        return self.trials.filter(task=task), self._metrics.filter(task=task)

    def model(self, task: str) -> TaskModel:
        """Fit the model of a task."""
        return TaskModel.fit(*self.rows_of(task), _lower(self.tasks[task].objective))

    def assess(self, task: str) -> Fit:
        """Return how well the model of a task predicts held-out trials."""
        objective = self.tasks[task].objective
        return assess(*self.rows_of(task), _lower(objective), objective.metric)

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint that tells this table's answers from trainings."""
        return Fingerprint(
            numerics=NUMERICS, code=self.digest, torch="", processor="no training: a table's model answered",
            compiler="", step_kind=SURROGATE, sources=(),
        )  # fmt: skip


def _lower(objective: Objective) -> Mapping[str, bool]:
    """Map the objective's metric to True if lower values are better."""
    return {objective.metric: objective.direction == "minimize"}


class Surrogate:
    """The models of a table's tasks, each of which is fitted when it first answers a trial."""

    def __init__(self, table: TrialTable) -> None:
        self._table = table
        self._models: dict[str, TaskModel] = {}

    def answer(self, trials: Sequence[Trial]) -> list[list[Report]]:
        """Return the reports of each trial; raises StudyError if the table cannot answer one."""
        names: list[str] = []
        for trial in trials:
            task, model = trial.config["task"], trial.config["model"]["name"]
            known = self._table.tasks
            fitting = [name for name, entry in known.items() if (entry.config, entry.model) == (task, model)]
            if not fitting:
                raise StudyError(
                    f"--surrogate: the table has no trials of this task and model ({task}, {model}); "
                    f"it has {', '.join(known)}"
                )
            names.append(fitting[0])
        reports: list[list[Report]] = [[] for _ in trials]
        for name in dict.fromkeys(names):
            if name not in self._models:
                self._models[name] = self._table.model(name)
            of_task = [at for at, other in enumerate(names) if other == name]
            answers = self._models[name].answer([flatten(trials[at].config) for at in of_task])
            for at, (curve, diverges) in zip(of_task, answers, strict=True):
                reports[at] = self._report(name, trials[at], curve, diverges=diverges)
        return reports

    def _report(self, task: str, trial: Trial, curve: Mapping[int, list[Metric]], *, diverges: bool) -> list[Report]:
        training = trial.config["training"]
        last, every = training["steps"], training["validate_every"]
        steps = sorted({*range(every, last, every), last})
        if last != max(curve) or not {*steps} <= {*curve}:
            raise StudyError(
                f"--surrogate: the table's trials of {task} are validated at {', '.join(map(str, sorted(curve)))}; "
                f"this space trains {last} steps and validates every {every}"
            )
        fingerprint = self._table.fingerprint()
        first = Report(
            number=trial.number, fence=trial.fence, step=steps[0], metrics=tuple(curve[steps[0]]),
            fingerprint=fingerprint,
        )  # fmt: skip
        if diverges:
            return [replace(first, metrics=(), state="diverged", error="the table's model says that it diverges")]
        reports = [replace(first, step=step, metrics=tuple(curve[step])) for step in steps]
        return [*reports[:-1], replace(reports[-1], state="finished")]


def run(
    controller: Steering,
    table: TrialTable,
    *,
    lanes: int | None = None,
    watch: Callable[[Progress], bool] | None = None,
) -> None:
    """Answer trials until the controller is done.

    `lanes` trials run side by side, and each round reports the next validation of each. `watch` is
    given the progress after each round; once it returns True, the controller is asked to stop.
    """
    surrogate, worker, width = Surrogate(table), "surrogate-0", lanes or LANES
    running: dict[int, list[Report]] = {}  # the reports that are left of each trial
    while True:
        reports = [pending.pop(0) for pending in running.values()]
        running = {number: pending for number, pending in running.items() if pending}
        started = -1
        while started:  # an exchange starts trials of one structure: repeat it until none starts
            holds = tuple(TrialStart(pending[0].number, pending[0].fence) for pending in running.values())
            offer = Offer(worker=worker, lanes=width - len(running), holds=holds, device="table")
            directives = controller.exchange(reports, offer)
            if directives.done or directives.lease_lost:
                return
            reports = []
            for number in directives.stop:
                running.pop(number, None)
            answers = surrogate.answer(directives.start)
            running |= zip((trial.number for trial in directives.start), answers, strict=True)
            started = len(directives.start)
        if watch and watch(controller.progress()):
            controller.request_stop()
