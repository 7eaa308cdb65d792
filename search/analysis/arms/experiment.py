"""The trials of an experiment as results that can be compared.

An arm is compared by the confirmations of its best configuration if the experiment has them, else
by its only configuration, else by the best of several, whose score is flattered by the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from search.analysis.metrics import UNBOUNDED, Range, range_of
from search.analysis.statistics.best_of import expected_best
from search.analysis.statistics.paired import mean_interval
from search.objectives import rank_by_mean
from spaces.experiment import ARM, CONFIGURATION, RANK, SEED
from spaces.settings import Direction, sign_of

READ = ("number", "state", "objective", "params")

Choice = Literal["single", "best", "confirmed"]
"""How the configuration that stands for an arm was found."""


@dataclass(frozen=True, kw_only=True)
class ComparedTrials:
    """The trials that arms are compared by."""

    choices: Mapping[str, Choice]
    """Arm -> how its configuration was found; arms in the experiment's order."""
    trials: pl.DataFrame
    """number, arm, seed, state, objective, by number."""


def read_arms(trials: pl.DataFrame) -> pl.DataFrame:
    """Return number, state, objective, arm, seed, configuration, rank of an experiment's trials."""
    params = pl.col("params").str
    names = {"arm": ARM, "seed": SEED, "configuration": CONFIGURATION, "rank": RANK}
    texts = {key: params.json_path_match(f'$["{name}"]') for key, name in names.items()}
    rows = trials.sort("number").select("number", "state", "objective", **texts)
    return rows.drop_nulls("arm").with_columns(pl.col("seed", "configuration", "rank").cast(pl.Int64))


def choose_trials(arms: pl.DataFrame, direction: Direction) -> ComparedTrials:
    """Return the trials of `read_arms` that stand for their arms."""
    best = rank_configurations(arms, direction).filter(pl.col("rank") == 0).select("arm", "configuration")
    choices: dict[str, Choice] = {}
    kept: list[pl.DataFrame] = []
    for (arm,), runs in arms.group_by("arm", maintain_order=True):
        if runs["rank"].null_count() < runs.height:
            choices[str(arm)] = "confirmed"
            kept.append(runs.filter(pl.col("rank") == 0))
        elif runs["configuration"].n_unique() > 1:
            choices[str(arm)] = "best"
            kept.append(runs.join(best, on=["arm", "configuration"], how="semi", maintain_order="left"))
        else:
            choices[str(arm)] = "single"
            kept.append(runs)
    kept = kept or [arms]  # without any trial yet
    trials = pl.concat(kept).select("number", "arm", "seed", "state", "objective")
    return ComparedTrials(choices=choices, trials=trials)


def rank_configurations(arms: pl.DataFrame, direction: Direction) -> pl.DataFrame:
    """Return arm, configuration, mean, rank (0: an arm's best) if every seed has an objective."""
    rows: list[tuple[str, int, float, int]] = []
    tried_first = arms.filter(pl.col("rank").is_null()).sort("arm")
    for (arm,), trials in tried_first.group_by("arm", maintain_order=True):
        tried = dict(trials.group_by("configuration").agg("objective").iter_rows())
        means = rank_by_mean(tried, trials["seed"].n_unique(), sign_of(direction))
        rows += [(str(arm), number, mean, rank) for rank, (number, mean) in enumerate(means.items())]
    schema = {"arm": pl.String, "configuration": pl.Int64, "mean": pl.Float64, "rank": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


def score_arms(
    compared: ComparedTrials, metrics: pl.DataFrame, metric: str, variant: str, condition: str
) -> pl.DataFrame:
    """Return condition, arm, seed, state, value, as `compare_arms` takes them.

    First come the trials' objectives, then their last validations under every other condition of
    the metric and variant that a trial of the arm reports; under all of them for an arm without any
    validation, whose trials all diverged before. `metrics` come in the order of steps.
    """
    trials = compared.trials
    validations = metrics.filter((pl.col("name") == metric) & (pl.col("variant") == variant))
    objectives = trials.select(pl.lit(condition).alias("condition"), "arm", "seed", "state", value="objective")
    last = (
        validations.filter(pl.col("condition") != condition)
        .group_by("number", "condition", maintain_order=True)
        .agg(pl.col("value").last())
    )
    name, size = pl.col("condition").str.extract("^([^=]*)"), pl.col("condition").str.extract(r"=(-?[\d.]+)")
    conditions = last.select("condition").unique().sort(name, size.cast(pl.Float64, strict=False), "condition")
    reported = last.join(trials, on="number").select("condition", "arm")
    silent = trials.select("arm").unique().join(validations.join(trials, on="number"), on="arm", how="anti")
    wanted = pl.concat([reported, conditions.join(silent, how="cross")])
    others = (
        conditions.join(trials.select("number", "arm", "seed", "state"), how="cross", maintain_order="left_right")
        .join(wanted, on=["condition", "arm"], how="semi", maintain_order="left")
        .join(last, on=["number", "condition"], how="left", maintain_order="left")
        .select("condition", "arm", "seed", "state", "value")
    )
    return pl.concat([objectives, others])


def confirmations(arms: pl.DataFrame, direction: Direction, within: Range = UNBOUNDED) -> pl.DataFrame:
    """Return arm, rank, chosen, trials, mean, low, high: a configuration's score on fresh seeds.

    `chosen` is the mean score on the seeds by which the configuration was chosen. `mean` is the mean
    on fresh seeds, with Student's 95 % interval, cut at the ends of the metric's range `within`.
    """
    chosen = rank_configurations(arms, direction).rename({"mean": "chosen"})
    rows: list[dict[str, Any]] = []
    fresh = arms.filter(pl.col("rank").is_not_null())
    for (arm, rank), trials in fresh.group_by("arm", "rank", maintain_order=True):
        values = trials["objective"].drop_nulls().to_numpy()
        low, high = np.clip(mean_interval(values), *within)
        mean = float(values.mean()) if len(values) else None
        rows.append({"arm": arm, "rank": rank, "trials": len(values), "mean": mean, "low": low, "high": high})
    schema = {"arm": pl.String, "rank": pl.Int64, "trials": pl.Int64}
    schema |= dict.fromkeys(("mean", "low", "high"), pl.Float64)
    scores = pl.DataFrame(rows, schema).with_columns(pl.selectors.float().fill_nan(None))
    return scores.join(chosen, on=["arm", "rank"], how="left", maintain_order="left").select(
        "arm", "rank", "chosen", "trials", "mean", "low", "high"
    )


def best_of_k(arms: pl.DataFrame, direction: Direction) -> pl.DataFrame:
    """Return arm, tries, value: the expected score of the best of `tries` configurations.

    A configuration with a seed that diverged counts as worse than any other. There is no value
    where all tries may have diverged.
    """
    sign = sign_of(direction)
    tried = arms.filter(pl.col("rank").is_null())
    curves: list[pl.DataFrame] = []
    for (arm,), trials in tried.group_by("arm", maintain_order=True):
        ended = trials.group_by("configuration").agg(
            open=pl.col("state").is_in(["queued", "running"]).any(),
            mean=pl.when(pl.col("objective").null_count() == 0).then(pl.col("objective").mean()),
        )
        costs = ended.filter(~pl.col("open"))["mean"] * sign
        best = expected_best(costs.fill_null(float("inf")).to_numpy())
        values = pl.Series(sign * best, dtype=pl.Float64)
        curves.append(
            pl.DataFrame({"arm": arm, "tries": range(1, len(best) + 1), "value": values}).filter(
                pl.col("value").is_finite()
            )
        )
    schema = {"arm": pl.String, "tries": pl.Int64, "value": pl.Float64}
    return pl.concat(curves) if curves else pl.DataFrame(schema=schema)


def learning_curves(
    compared: ComparedTrials, metrics: pl.DataFrame, metric: str, variant: str, condition: str
) -> pl.DataFrame:
    """Return arm, step, trials, mean, low, high, smallest, largest at each validation.

    Statistics are over the seeds of an arm that have not diverged by then, of which there are
    `trials`; low and high are Student's 95 % interval, within the metric's range.
    """
    validations = metrics.filter(
        (pl.col("name") == metric) & (pl.col("variant") == variant) & (pl.col("condition") == condition)
    )
    known = validations.join(compared.trials.select("number", "arm"), on="number").filter(pl.col("value").is_finite())
    rows: list[dict[str, Any]] = []
    for (arm, step), at_step in known.group_by("arm", "step", maintain_order=True):
        values = at_step["value"].to_numpy()
        low, high = np.clip(mean_interval(values), *range_of(metric))
        rows.append(
            {"arm": arm, "step": step, "trials": len(values), "mean": float(values.mean()), "low": low, "high": high}
            | {"smallest": float(values.min()), "largest": float(values.max())}
        )
    numbers = dict.fromkeys(("mean", "low", "high", "smallest", "largest"), pl.Float64)
    frame = pl.DataFrame(rows, schema={"arm": pl.String, "step": pl.Int64, "trials": pl.Int64, **numbers})
    arms = list(compared.choices)
    order = pl.col("arm").replace_strict(arms, range(len(arms)), return_dtype=pl.Int64)
    return frame.with_columns(pl.selectors.float().fill_nan(None)).sort(order, "step")
