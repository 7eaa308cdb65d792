"""The table's trials: trained slice by slice, kept as two frames, and trained again from these alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

import graft
from benchmarks.kept import train_again
from benchmarks.table.plan import TaskPlan
from spaces.records import Scalar

Slices = Collection[tuple[str, int]]
"""Slices by the name of their task and their number."""


def train(tasks: Iterable[TaskPlan], database: str, kept: Slices = frozenset()) -> None:
    """Train what is left: slice 0 of every task, then slice 1, and so on. An interrupt loses nothing recorded.

    `kept`: slices that another database has trained already.
    """
    run = graft.Run(executor="inline", workers=1, device="cpu", checkpoints="none")
    tasks = list(tasks)
    done = _finished(database)
    for number in tasks[0].slices:
        for task in tasks:
            if task.study(number) not in done and (task.name, number) not in kept:
                graft.launch(task.as_space(number), database=database, run=run)


def _finished(database: str) -> frozenset[str]:
    try:
        return frozenset(graft.open(database).studies().filter(pl.col("state") == "finished")["name"])
    except graft.GraftError:  # there is no database yet
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class Table:
    """The trials of the table and their metrics, as two frames.

    `trials`: a row for each, with task, slice, number (in the slice), seed, state, steps, numerics, step_kind, space
    (the text of the slice's, from which the trial can be trained again), and a column for each part of the slice's
    structure and each parameter, null where the trial has none. `metrics`: task, slice, number, step, name, variant,
    condition, value.
    """

    trials: pl.DataFrame
    metrics: pl.DataFrame

    @property
    def slices(self) -> Slices:
        """The slices whose trials are here."""
        return {(task, number) for task, number in self.trials.select("task", "slice").unique().iter_rows()}


_TRIALS = """
SELECT trials.number, trials.seed, trials.state, trials.steps,
       fingerprints.numerics, fingerprints.step_kind, studies.space
FROM trials JOIN studies ON studies.id = trials.study_id
JOIN fingerprints ON fingerprints.study_id = trials.study_id AND fingerprints.number = trials.fingerprint
WHERE studies.name = '{study}' ORDER BY trials.number
"""


def collect(tasks: Iterable[TaskPlan], database: str, kept: Slices = frozenset()) -> Table:
    """Return the trials of all finished slices, without those that are kept already."""
    stored, done = graft.open(database), _finished(database)
    trials, metrics = list[pl.DataFrame](), list[pl.DataFrame]()
    for task in tasks:
        for number in task.slices:
            if (name := task.study(number)) not in done or (task.name, number) in kept:
                continue
            where = {"task": pl.lit(task.name), "slice": pl.lit(number, dtype=pl.Int16)}
            shared = {path: pl.lit(value) for path, value in _describe(task.choose(number)).items()}
            study = stored[name]
            params = study.trials().select("number", pl.col("^params\\..*$").name.map(lambda path: path[7:]))
            trials.append(
                stored.query(_TRIALS.format(study=name)).join(params, on="number").with_columns(**where, **shared)
            )
            metrics.append(study.metrics().with_columns(**where))
    if not trials:
        return Table(trials=pl.DataFrame(), metrics=pl.DataFrame())
    joined = pl.concat(trials, how="diagonal_relaxed")
    first = ["task", "slice", "number"]
    values = pl.concat(metrics).select(*first, "step", "name", "variant", "condition", "value")
    return Table(trials=joined.select(*first, pl.exclude(first)), metrics=values)


def _describe(structure: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the structure's values by path; of a plug-in with fields its name, and the fields that are not drawn."""
    values: dict[str, Scalar] = {}
    for path, value in structure.items():
        if isinstance(value, dict):
            [(values[path], fields)] = value.items()
            values |= {f"{path}.{name}": field for name, field in fields.items() if not _is_drawn(field)}
        else:
            values[path] = value
    return values


def _is_drawn(value: Scalar) -> bool:
    return isinstance(value, str) and "uniform" in value


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A trial trained again: how many of its kept values it gives again to the bit."""

    task: str
    slice: int
    number: int
    equal: int
    values: int


def replay(table: Table, task: str, number_of_slice: int, number: int) -> Replayed:
    """Train a kept trial again, alone, from the space's text that is kept with it."""
    mine = {"task": task, "slice": number_of_slice, "number": number}
    [row] = table.trials.filter(**mine).to_dicts()
    reports = train_again(row["space"], row["numerics"], number, row["step_kind"] or "")
    again: Mapping[tuple[int, str, str, str], float] = {
        (report.step, metric.name, metric.variant, metric.condition): metric.value
        for report in reports
        for metric in report.metrics
    }
    kept = table.metrics.filter(**mine).select("step", "name", "variant", "condition", "value")
    equal = [again.get((step, *name)) == value for step, *name, value in kept.iter_rows()]
    return Replayed(task=task, slice=number_of_slice, number=number, equal=sum(equal), values=len(equal))
