"""The atlas' trials: trained in parts, kept as one frame, and trained again from that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import polars as pl

import graft
from benchmarks.atlas.plan import Endpoint, TaskPlan
from benchmarks.kept import train_again

KEPT = {
    "task": pl.String,
    "number": pl.Int32,
    "arm": pl.String,
    "seed": pl.Int8,
    "trial_seed": pl.Int64,
    "space": pl.String,
    "state": pl.String,
    "endpoint": pl.String,
    "metric": pl.String,
    "direction": pl.String,
    "variant": pl.String,
    "condition": pl.String,
    "value": pl.Float64,
    "floor": pl.Float64,
    "numerics": pl.Int16,
    "step_kind": pl.String,
}
"""Columns of what is kept, one row per trial and endpoint.

`number`: in its study; `seed`: 0, 1, ... of the experiment, from which `trial_seed` follows; `space`: the
experiment's text, from which a trial can be trained again; `value`: null of a trial that diverged; `numerics`: the
version of the numerics that trained it, and `step_kind`: by which step, on which processor (of its fingerprint)."""


def train(tasks: Iterable[TaskPlan], database: str) -> None:
    """Train what is left of these tasks' studies, one after another; an interrupt or a kill loses nothing recorded."""
    run = graft.Run(executor="inline", workers=1, device="cpu", pack=8, checkpoints="none")
    for task in tasks:
        graft.launch(task.as_space(), database=database, run=run)


def collect(tasks: Iterable[TaskPlan], databases: Iterable[str]) -> pl.DataFrame:
    """Return the trials of finished studies, columns KEPT, in the plan's order; a task's are of its first database."""
    opened, frames = [graft.open(database) for database in databases], list[pl.DataFrame]()
    for task in tasks:
        have = [
            database
            for database in opened
            if task.study in database and database[task.study].status().state == "finished"
        ]
        frames += [_collect(task, studies) for studies in have[:1]]
    return pl.concat(frames) if frames else pl.DataFrame(schema=KEPT)


_TRAINED_BY = """
SELECT trials.number, fingerprints.numerics, fingerprints.step_kind, studies.space
FROM trials JOIN studies ON studies.id = trials.study_id
JOIN fingerprints ON fingerprints.study_id = trials.study_id AND fingerprints.number = trials.fingerprint
WHERE studies.name = '{study}'
"""


def _collect(task: TaskPlan, studies: graft.Database) -> pl.DataFrame:
    study, trained_by = studies[task.study], studies.query(_TRAINED_BY.format(study=task.study))
    trials = study.trials().select("number", "state", arm="params.arm", seed="params.seed", trial_seed="seed")
    trials = trials.join(trained_by, on="number", how="left")
    metrics = study.metrics().select("number", "name", "variant", "condition", "value")
    values = {(number, name, variant, where): value for number, name, variant, where, value in metrics.iter_rows()}
    floors = {end.kind: _floor(end, values) for end in task.endpoints}
    rows: list[dict[str, Any]] = []
    for trial in trials.sort("number").iter_rows(named=True):
        for end in task.endpoints:
            variant, finished = task.variant(trial["arm"]), trial["state"] == "finished"
            value = values.get((trial["number"], end.metric, variant, end.condition)) if finished else None
            rows.append(
                {**trial, "task": task.name, "endpoint": end.kind, "metric": end.metric}
                | {
                    "direction": end.direction,
                    "variant": variant,
                    "condition": end.condition,
                    "value": value,
                    "floor": floors[end.kind],
                }
            )
    return pl.DataFrame(rows, schema_overrides=KEPT).select(*KEPT)


def _floor(end: Endpoint, values: Mapping[tuple[int, str, str, str], float]) -> float | None:
    """Return the floor of a set; one that is a metric depends on the data alone, so is the same in all trials."""
    if not isinstance(end.floor, str):
        return end.floor
    asked = (end.floor, "raw", end.condition)
    return next((value for key, value in values.items() if key[1:] == asked), None)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A kept value, and what the trial gives when it is trained again."""

    task: str
    number: int
    endpoint: str
    kept: float | None
    again: float | None

    @property
    def agrees(self) -> bool:
        """To the bit, as on the same kind of processor."""
        return self.kept == self.again


def replay(kept: pl.DataFrame, task: str, number: int) -> list[Replayed]:
    """Train a kept trial again, alone; one comparison for each of its sets."""
    rows = kept.filter(task=task, number=number).to_dicts()
    last = train_again(rows[0]["space"], rows[0]["numerics"], number)[-1]
    values = {(metric.name, metric.variant, metric.condition): metric.value for metric in last.metrics}
    return [
        Replayed(
            task=task,
            number=number,
            endpoint=row["endpoint"],
            kept=row["value"],
            again=_finite(values.get((row["metric"], row["variant"], row["condition"]))),
        )
        for row in rows
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
