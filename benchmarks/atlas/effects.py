"""What the kept trials say: each arm against the baseline on each task's sets, over the same seeds.

A *score* is on one scale for all sets, more is better: 100 x a metric that is maximised (points), and -100 ln of an
error or a perplexity, so that 10 is about 10 % less of it. An *effect* is the mean of arm minus baseline over the
seeds; a *cell* is an arm on a set. P values are corrected over all cells of the atlas together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from scipy.special import nctdtr, stdtrit

from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.intervals import Student
from search.analysis.statistics.paired import decisive_p
from search.analysis.statistics.verdicts import SURE, UNDECIDED, decide

CELL = ("task", "endpoint", "arm")
BASELINE = "baseline"
POWER = 0.8


@dataclass(frozen=True, kw_only=True)
class Atlas:
    """The effects of all arms."""

    cells: pl.DataFrame
    """One row per arm but the baseline, task and endpoint, in the order of the kept trials: pairs, diverged (trials of
    the arm), mean, low, high (Student's paired 95 % interval), p (`decisive_p`), q (Benjamini and Hochberg over all
    rows), wide_low, wide_high, verdict.

    wide_*: intervals of a confidence of 1 - .05 r / m, r of m cells having q < .05, so that of those r at most 5 % miss
    in expectation; one excludes 0 just where q < .05 (Benjamini and Yekutieli 2005, "False Discovery Rate-Adjusted
    Multiple Confidence Intervals for Selected Parameters"). `verdict`: better or worse where it does.
    """
    floors: pl.DataFrame
    """task, endpoint, metric, direction, value (the baseline's mean of the metric), floor, learned: whether the
    baseline's score is above the floor's, by the 95 % lower end of Student's interval."""

    @cached_property
    def found(self) -> pl.DataFrame:
        """The cells that are told apart from no effect."""
        return self.cells.filter(pl.col("verdict") != UNDECIDED)


def score_trials(kept: pl.DataFrame) -> pl.DataFrame:
    """Return the kept trials with `score` and `floor_score`; one that diverged has the score of the floor."""
    is_error = pl.col("direction") == "minimize"

    def score(column: str) -> pl.Expr:
        value = pl.col(column)
        return pl.when(is_error).then(-100 * value.log()).otherwise(100 * value)

    scored = kept.with_columns(score=score("value"), floor_score=score("floor"))
    return scored.with_columns(score=pl.col("score").fill_null(pl.col("floor_score")))


def find_effects(kept: pl.DataFrame) -> Atlas:
    """Return the atlas of trials as `benchmarks.atlas.trials.KEPT` has them."""
    scored = score_trials(kept)
    return Atlas(cells=_test(_pair(scored, pl.col("score"))), floors=_check_floors(scored))


def find_gaps(kept: pl.DataFrame, arm: str) -> pl.DataFrame:
    """Return what an arm changes of the score out of distribution less that in it, on the tasks that have both.

    Columns as of `Atlas.cells`; P values are corrected over these tasks.
    """
    scored = score_trials(kept.filter(pl.col("arm").is_in([BASELINE, arm])))
    both = scored.pivot("endpoint", index=["task", "arm", "seed", "state"], values="score")
    if not {"in", "out"} <= set(both.columns):
        return _test(_pair(scored.clear(), pl.col("score")))
    gaps = both.drop_nulls(["in", "out"]).with_columns(endpoint=pl.lit("gap"), score=pl.col("out") - pl.col("in"))
    return _test(_pair(gaps, pl.col("score")))


def compare_atlases(earlier: Atlas, later: Atlas) -> pl.DataFrame:
    """Return the cells of both by task, endpoint and arm: verdict and mean, `again_verdict` and `again_mean`."""
    cells = later.cells.select(*CELL, again_verdict="verdict", again_mean="mean")
    return earlier.cells.select(*CELL, "verdict", "mean").join(cells, on=CELL, maintain_order="left")


def find_power(effect: float, pairs: int, level: float = SURE) -> float:
    """Return how often a two-sided paired t-test at `level` finds an effect, in deviations of the changes."""
    critical = float(stdtrit(pairs - 1, 1 - level / 2))
    return 1 - float(nctdtr(pairs - 1, effect * pairs**0.5, critical))


def detectable(deviation: float, pairs: int, level: float = SURE, power: float = POWER) -> float:
    """Return the effect that a two-sided paired t-test at `level` finds with this power, for changes of a deviation."""
    low, high = 0.0, 100.0
    for _ in range(60):  # bisection of the effect, in which power rises
        middle = (low + high) / 2
        low, high = (middle, high) if find_power(middle, pairs, level) < power else (low, middle)
    return high * deviation


def _pair(scored: pl.DataFrame, score: pl.Expr) -> pl.DataFrame:
    """pairs, diverged, mean, deviation and changes of each cell."""
    key = ["task", "endpoint", "seed"]
    known = scored.select(*CELL, "seed", diverged=pl.col("state") == "diverged", score=score)
    against = known.filter(pl.col("arm") == BASELINE).select(*key, against="score")
    change = pl.col("score") - pl.col("against")
    return (
        known.filter(pl.col("arm") != BASELINE)
        .join(against, on=key, maintain_order="left")
        .group_by(*CELL, maintain_order=True)
        .agg(
            pairs=pl.len().cast(pl.Int64),
            diverged=pl.col("diverged").sum(),
            mean=change.mean(),
            deviation=change.std(),
            changes=change,
        )
    )


def _test(cells: pl.DataFrame) -> pl.DataFrame:
    """Return the cells with their intervals, tests and verdicts."""
    low, high = Student().bounds(cells)
    p = decisive_p(cells)
    q = adjust_p(p, "bh")
    selected = int(np.sum(q < SURE))
    wide_low, wide_high = Student(confidence=1 - SURE * max(selected, 1) / max(len(q), 1)).bounds(cells)
    columns: dict[str, Any] = {"low": low, "high": high, "p": p, "q": q, "wide_low": wide_low, "wide_high": wide_high}
    tested = cells.with_columns(pl.Series(name, values, dtype=pl.Float64) for name, values in columns.items())
    verdict = decide(pl.col("q"), pl.col("wide_low"), pl.col("wide_high"), pl.lit(True))
    return tested.with_columns(verdict=verdict).drop("changes")


def _check_floors(scored: pl.DataFrame) -> pl.DataFrame:
    baseline = scored.filter(pl.col("arm") == BASELINE)
    above = pl.col("score") - pl.col("floor_score")
    floors = baseline.group_by("task", "endpoint", "metric", "direction", maintain_order=True).agg(
        value=pl.col("value").mean(),
        floor=pl.col("floor").mean(),
        pairs=pl.len().cast(pl.Int64),
        mean=above.mean(),
        deviation=above.std(),
    )
    low, _ = Student().bounds(floors)
    return floors.with_columns(learned=pl.Series(low) > 0).drop("pairs", "mean", "deviation")
