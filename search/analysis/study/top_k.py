"""Top-k statistics: the best trial, the means of the best 1 % and 10 %, and their intervals.

Legend: *cost* is a metric turned so that less is better; a *cell* is the trials that are ranked
against one another; a *portion* is a named share of a cell's best trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from search.analysis.statistics.intervals import FEWEST_OF_MEDIAN, median_depth, student_quantile

RAW = "raw"
"""The variant that all others are compared with."""

FEWEST = 5
"""A mean of fewer numbers gets no interval, nor does the change of a portion of fewer trials."""

FEWEST_BEST = 10
"""The mean of a portion of fewer trials gets no interval, as it would cover less than 93 %."""

Portions = Mapping[str, int]
"""Name of a portion -> it has one in so many trials, at least one; 0 is the best trial alone."""

PORTIONS: Portions = {"best": 0, "best 1 %": 100, "best 10 %": 10}
"""The portions that paper 003 reports of each ensemble (5.5)."""

FINE_PORTIONS: Portions = {"best 0.1 %": 1000, "best 1 %": 100, "best 10 %": 10, "all": 1}
"""The portions of paper 003's Figure 2, and all trials to compare them with."""

PORTION = pl.Enum(["best", "best 0.1 %", "best 1 %", "best 10 %", "all"])
"""The type of a portion's name, which sorts from few to many."""


def rank(scores: pl.DataFrame, cells: Sequence[str]) -> pl.DataFrame:
    """Return trials with a cost, their `rank` in their cell (1 is best) and the cell's `trials`.

    Equally good trials rank by number. Not lazy, as every portion is cut from it: the query planner
    would rank once for each.
    """
    known = scores.filter(pl.col("cost").is_not_null())
    if not known["number"].is_sorted():  # stored ones are; sorting copies a large study
        known = known.sort("number")
    ranks = pl.col("cost").rank("ordinal").over(cells)
    return known.with_columns(rank=ranks, trials=pl.len().over(cells))


def best_of(trials: pl.DataFrame, portion: str, one_in: int) -> pl.LazyFrame:
    """Return the ranked trials of the portion, with its name and the number of trials `counted`."""
    share = pl.col("trials") // one_in if one_in else pl.lit(1)
    counted = pl.max_horizontal(1, share).cast(pl.Int64)
    named = trials.lazy().with_columns(portion=pl.lit(portion, PORTION), counted=counted)
    return named if one_in == 1 else named.filter(pl.col("rank") <= pl.col("counted"))


def top_k_statistics(scores: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return a row per cell and portion of PORTIONS; cells are values of `keys` and `variant`.

    `scores` has number, keys, variant, sign (1: less is better, -1: more) and cost = sign * metric.
    The rows have keys, variant, sign, trials, portion, counted, value (mean metric of the portion),
    margin (half the 95 % interval of value), raw (value of the variant `raw`), change = (value -
    raw) / |raw| and change_margin. margin is null for fewer than FEWEST_BEST trials, change_margin
    for fewer than FEWEST; raw and change are null if there is no raw.

    The intervals are Student's, from the influence of each trial on the mean of a portion: (edge -
    cost)+ / counted up to a constant, edge the worst cost inside (Manistre and Hancock, "Variance
    of the CTE estimator", 2005). The edge is drawn too, and lies nearer to the rest than its
    quantile: of k trials with exponential spacings (Renyi 1953) the variance of the mean is (2k +
    1) / (2k - 2) times that of the influences. Intervals of a change pair the variants of each
    trial, whose edges move together.
    """
    trials = rank(scores.select("number", *keys, "variant", "sign", "cost"), [*keys, "variant"])
    cells, cost, is_raw = [*keys, "variant"], pl.col("cost"), pl.col("variant") == RAW
    portions: list[pl.LazyFrame] = []
    for name, one_in in PORTIONS.items():
        best = best_of(trials, name, one_in)
        pulled = best.with_columns(pull=(cost.max().over(cells) - cost) / pl.col("counted"))
        raw_pulled = pulled.filter(is_raw).select("number", *keys, raw_pull="pull")
        sums = (
            pulled.join(raw_pulled, on=["number", *keys], how="left")
            .group_by(cells)
            .agg(
                pl.col("sign", "trials", "portion", "counted").first(),
                value=pl.col("sign").first() * cost.mean(),
                lift=pl.col("pull").sum(),
                own=pl.col("pull").pow(2).sum(),
                both=(pl.col("pull") * pl.col("raw_pull")).sum(),
            )
        )
        raw_found = sums.filter(is_raw).select(*keys, raw="value", raw_lift="lift", raw_own="own")
        compared = sums.join(raw_found, on=list(keys), how="left").with_columns(**_intervals())
        portions.append(compared.drop("lift", "own", "both", "raw_lift", "raw_own"))
    return pl.concat(portions).collect()


def _intervals() -> Mapping[str, pl.Expr]:
    value, raw, counted = pl.col("value"), pl.col("raw"), pl.col("counted")
    lift, raw_lift, trials = pl.col("lift"), pl.col("raw_lift"), pl.col("trials")
    # Sums of products about the mean: variances and covariance of the means.
    squares = pl.col("own") - lift**2 / trials
    raw_own = pl.col("raw_own") - raw_lift**2 / trials
    both = pl.col("both") - lift * raw_lift / trials
    comparable, ratio = (pl.col("variant") != RAW) & (raw != 0), value / raw
    variance = (squares - 2 * ratio * both + ratio**2 * raw_own) / raw**2
    has_margin = comparable & (counted >= FEWEST)
    reach = student_quantile(counted)
    of_edge = (2 * counted + 1) / (2 * counted - 2)
    return {
        "margin": pl.when(counted >= FEWEST_BEST).then(reach * (of_edge * squares.clip(0)).sqrt()),
        "change": pl.when(comparable).then((value - raw) / raw.abs()),
        "change_margin": pl.when(has_margin).then(reach * variance.clip(0).sqrt()),
    }


def mean_margin(column: str, confidence: float = 0.95) -> pl.Expr:
    """Return half Student's interval of the mean of a column; null for fewer than FEWEST values."""
    values = pl.col(column)
    return pl.when(values.count() >= FEWEST).then(
        student_quantile(values.count(), confidence) * values.std() / values.count().sqrt()
    )


def median_interval(column: str) -> Mapping[str, pl.Expr]:
    """Return `median` and its 95 % interval, `low` and `high`; null for fewer than 6 values."""
    values, count = pl.col(column).drop_nulls().sort(), pl.col(column).count()
    depth = median_depth(count)
    rank, share = depth.floor().cast(pl.Int64), depth - depth.floor()

    def between(outer: pl.Expr, inner: pl.Expr) -> pl.Expr:
        ends = values.get(outer, null_on_oob=True), values.get(inner, null_on_oob=True)
        return pl.when(count >= FEWEST_OF_MEDIAN).then(ends[0] + share * (ends[1] - ends[0]))

    return {
        "median": values.median(),
        "low": between(rank - 1, rank),
        "high": between(count - rank, count - rank - 1),
    }
