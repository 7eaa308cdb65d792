"""The trials of the plan: trained, kept as one frame, compared, and trained again from that frame alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import polars as pl

import graft
from benchmarks.kept import train_again
from benchmarks.papers.plan import Level, Plan, Row, StudyPlan, read_plan
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import PairedDifference, mean_interval, summarize_differences


def train(studies: Iterable[StudyPlan], database: str) -> None:
    """Train what is left of these studies, one after another; an interrupt or a kill loses nothing recorded."""
    run = graft.Run(executor="inline", workers=1, device="cpu", checkpoints=None)
    for study in studies:
        graft.launch(study.as_space(), database=database, run=run)


def trained_study(name: str, description: str | None) -> graft.Study:
    """Train a study of the plan to its end in the command line's `--database`, and return it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True)
    database, plan = parser.parse_args().database, read_plan().studies[name]
    train([plan], database)
    return graft.open(database)[plan.study]


_TRIALS = """
SELECT trials.number, trials.state, fingerprints.numerics, fingerprints.step_kind, studies.space,
       MIN(trials.started_at) OVER () AS first, MAX(trials.finished_at) OVER () AS last
FROM trials JOIN studies ON studies.id = trials.study_id
JOIN fingerprints ON fingerprints.study_id = trials.study_id AND fingerprints.number = trials.fingerprint
WHERE studies.name = '{study}'
"""


def collect(plan: Plan, database: str) -> pl.DataFrame:
    """Return the metrics that the plan names, of the trials of finished studies; one row per trial, metric and step.

    Columns: study, number, arm, seed, state, metric, condition, step (that of the plan's levels; of its rows the
    last), value (null of a trial that diverged), numerics, step_kind, minutes (of the whole study, from its first
    start to its last end), space (its text).
    """
    stored, frames = graft.open(database), list[pl.DataFrame]()
    for design in plan.studies.values():
        named = _named(plan, design.name)
        if not named or design.study not in stored or stored[design.study].status().state != "finished":
            continue
        study = stored[design.study]
        trials = stored.query(_TRIALS.format(study=design.study)).with_columns(
            minutes=_minutes(pl.col("last")) - _minutes(pl.col("first"))
        )
        params = study.trials().select("number", *_columns(study.trials()))
        metrics = study.metrics().filter(variant="raw").select("number", "condition", "step", "value", metric="name")
        last = metrics["step"].max()
        wanted = pl.DataFrame(
            sorted((metric, condition, step or last) for metric, condition, step in named),
            schema={"metric": pl.String, "condition": pl.String, "step": metrics.schema["step"]},
            orient="row",
        )
        values = metrics.join(wanted, on=["metric", "condition", "step"])
        joined = values.join(params, on="number").join(trials.drop("first", "last"), on="number")
        frames.append(joined.with_columns(study=pl.lit(design.name)).sort("number", "metric", "condition", "step"))
    return pl.concat(frames, how="diagonal") if frames else pl.DataFrame()


def _minutes(column: pl.Expr) -> pl.Expr:
    return column.str.to_datetime(strict=False).dt.epoch("ms") / 60_000


def _columns(trials: pl.DataFrame) -> list[pl.Expr]:
    """Arm and seed of an experiment's trials; of others the trial's number is its seed."""
    if "params.arm" in trials.columns:
        return [pl.col("params.arm").alias("arm"), pl.col("params.seed").cast(pl.Int64).alias("seed")]
    return [pl.lit("").alias("arm"), pl.col("number").cast(pl.Int64).alias("seed")]


def _named(plan: Plan, study: str) -> set[tuple[str, str, int | None]]:
    """Return metric, condition and step of what the plan says of a study; the step None is the last."""
    rows = (row for row in plan.rows if row.study == study)
    levels = (level for level in plan.levels if level.study == study)
    return {(row.metric, condition, None) for row in rows for condition in _conditions(row)} | {
        (level.metric, level.condition, step) for level in levels for step in level.steps
    }


def _conditions(row: Row) -> tuple[str, ...]:
    return (row.condition,) if row.arm else (row.condition, row.against)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of one row of the plan."""

    row: Row
    against: float
    """Mean of the baseline, of the pairs that have both."""
    value: float
    difference: PairedDifference
    against_interval: tuple[float, float]
    value_interval: tuple[float, float]
    adjusted_p: float
    """Holm's, over all rows of the plan that have results."""

    @property
    def verdict(self) -> str:
        """What may be said at the adjusted level of 5 %."""
        if self.adjusted_p >= 0.05 or self.difference.low <= 0 <= self.difference.high:
            return "not told apart"
        direction = "less" if self.difference.mean < 0 else "more"
        return (
            direction
            if self.row.expected == "open"
            else f"{direction}, {'as' if direction == self.row.expected else 'not as'} planned"
        )


def compare(plan: Plan, kept: pl.DataFrame) -> list[Result]:
    """Return the rows whose study is finished, each with Student's paired interval, corrected together by Holm."""
    pairs = [(row, _pairs(row, kept)) for row in plan.rows if row.study in kept["study"].unique()]
    differences = [summarize_differences(values - base) for _, (values, base) in pairs]
    adjusted = adjust_p(np.array([difference.p for difference in differences]))
    return [
        Result(
            row=row,
            against=float(base.mean()),
            value=float(values.mean()),
            difference=difference,
            against_interval=mean_interval(base),
            value_interval=mean_interval(values),
            adjusted_p=float(p),
        )
        for (row, (values, base)), difference, p in zip(pairs, differences, adjusted, strict=True)
    ]


def _pairs(row: Row, kept: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Values of the row and of its baseline, by seed."""
    rows = kept.filter((pl.col("study") == row.study) & (pl.col("metric") == row.metric))
    values = rows.filter((pl.col("condition") == row.condition) & (pl.col("arm") == (row.arm or row.of)))
    base = rows.filter(
        (pl.col("condition") == (row.condition if row.arm else row.against))
        & (pl.col("arm") == (row.against if row.arm else row.of))
    )
    both = values.join(base, on="seed", suffix="_base").drop_nulls(["value", "value_base"]).sort("seed")
    return both["value"].to_numpy(), both["value_base"].to_numpy()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A level of the plan after a number of steps, over the seeds whose trials have not diverged."""

    level: Level
    step: int
    mean: float
    interval: tuple[float, float]
    """Student's, of 95 %."""
    least: float
    most: float
    seeds: int


def reach(plan: Plan, kept: pl.DataFrame) -> list[Reached]:
    """Return the levels whose study is finished, step by step."""
    if "step" not in kept.columns:  # parts were kept without it, before there were levels
        return []
    points = list[Reached]()
    for level, step in [(target, step) for target in plan.levels for step in target.steps]:
        rows = kept.filter(study=level.study, metric=level.metric, condition=level.condition, step=step)
        values = rows["value"].drop_nulls().to_numpy()
        if values.size:
            points.append(
                Reached(
                    level=level,
                    step=step,
                    mean=float(values.mean()),
                    interval=mean_interval(values),
                    least=float(values.min()),
                    most=float(values.max()),
                    seeds=values.size,
                )
            )
    return points


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A trial trained again: how many of its kept values it gives again to the bit."""

    study: str
    number: int
    equal: int
    values: int
    before: str
    """The kind of step that trained the kept trial: `native AVX2`."""
    now: str
    """The kind that trained it again; with another one the last bits differ."""

    def __str__(self) -> str:
        text = f"{self.study}:{self.number}: {self.equal} of {self.values} values equal to the bit"
        return text if self.before == self.now else f"{text}, trained by {self.before} before and by {self.now} now"


def replay(kept: pl.DataFrame, study: str, number: int) -> Replayed:
    """Train a kept trial again, alone, from the space's text that is kept with it."""
    rows = kept.filter((pl.col("study") == study) & (pl.col("number") == number)).to_dicts()
    reports = train_again(rows[0]["space"], rows[0]["numerics"], number)
    again = {
        (metric.name, metric.condition, report.step): metric.value
        for report in reports
        for metric in report.metrics
        if metric.variant == "raw"
    }
    last = reports[-1].step  # earlier parts were kept without it
    values = [again.get((row["metric"], row["condition"], row.get("step") or last)) for row in rows]
    equal = [a == row["value"] for a, row in zip(values, rows, strict=True) if a is not None and isfinite(a)]
    now = next(report.fingerprint.step_kind for report in reports if report.fingerprint)
    before = rows[0]["step_kind"]
    return Replayed(study=study, number=number, equal=sum(equal), values=len(rows), before=before, now=now)
