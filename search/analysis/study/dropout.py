"""How much dropout the best trials use: the numbers of paper 003's Figure 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from search.analysis.study.groups import count_doublings
from search.analysis.study.top_k import FINE_PORTIONS, PORTION, best_of, mean_margin, rank


@dataclass(frozen=True, kw_only=True)
class DropoutRates:
    """Mean dropout rates of the best trials by the objective's metric, once per variant.

    Portions are those of `top_k.FINE_PORTIONS`, in a group. Dropout rates are the sampled
    parameters whose name ends in `dropout`. A margin is half a 95 % interval.
    """

    rates: pl.DataFrame
    """group_number, dropout (the parameter's path), variant, portion, counted, rate, margin."""
    pooled: pl.DataFrame
    """dropout, variant, portion, counted, rate, margin: means over groups, or over trials ranked
    together if there are fewer than two. `counted` is the most trials of the portion in a group."""
    trend: pl.DataFrame
    """measure, extra (`fewer`: groups up to the median measure; `more`: the others), dropout,
    variant, portion, the given amount, groups, rate, margin: means over groups of amount 0, 1-2,
    3-6, 7-14, ..."""


def average_dropout(
    sampled: pl.DataFrame, scores: pl.DataFrame, groups: pl.DataFrame, amount: str, measures: Sequence[str]
) -> DropoutRates:
    """Return the rates of the best trials of a study.

    `sampled` has number and a column for each sampled dropout rate, null for a trial without it;
    `scores` are those of one metric. `groups` has group_number, the column `amount`, over which the
    trend goes, and the columns `measures`, by whose medians it parts the groups.
    """
    paths = sorted(sampled.columns[1:])
    rates = sampled.with_columns(pl.col(paths).cast(pl.Float64))
    variant = pl.col("variant").cast(pl.Categorical)
    known = scores.select("number", "group_number", variant, cost="best")
    scored = known.drop_nulls("cost").join(rates, on="number")
    by_group = _rates(scored.join(groups, on="group_number", how="semi"), ["group_number"], paths)
    if groups.height < 2:
        pooled = _rates(scored, [], paths)
    else:
        means = by_group.group_by("dropout", "variant", "portion").agg(
            counted=pl.col("counted").max(), mean=pl.col("rate").mean(), margin=mean_margin("rate")
        )
        pooled = means.rename({"mean": "rate"}).select(*_RATES)
        pooled = pooled.sort("dropout", "variant", "portion")
    trend = _trend(by_group, groups, amount, measures)
    return DropoutRates(rates=by_group, pooled=pooled, trend=trend)


def _rates(scored: pl.DataFrame, cell: Sequence[str], paths: Sequence[str]) -> pl.DataFrame:
    """Return means over the portions of each cell, of the trials that have the rate."""
    cells = [*cell, "variant"]
    parts = [pl.DataFrame(schema={name: pl.Int64() for name in cell} | _RATES)]
    variants: list[str] = scored["variant"].unique().to_list() if paths else []
    # One after the other, as the portions: together they would be several times the trials.
    for variant in variants:
        trials = rank(scored.filter(pl.col("variant") == variant), cells)
        index = [*cells, "portion", "counted"]
        rates = [pl.struct(rate=pl.col(path).mean(), margin=mean_margin(path)).alias(path) for path in paths]
        for portion, one_in in FINE_PORTIONS.items():
            means = (
                best_of(trials, portion, one_in)
                .group_by(index)
                .agg(rates)
                .unpivot(on=paths, index=index, variable_name="dropout", value_name="found")
                .unnest("found")
                .select(*cell, *_RATES)
                .with_columns(pl.col("variant").cast(pl.String))
            )
            parts.append(means.collect())
    return pl.concat(parts).drop_nulls("rate").sort(*cell, "dropout", "variant", "portion")


_RATES: dict[str, pl.DataType | type[pl.DataType]] = {
    "dropout": pl.String(),
    "variant": pl.String(),
    "portion": PORTION,
    "counted": pl.Int64(),
    "rate": pl.Float64(),
    "margin": pl.Float64(),
}


def _trend(rates: pl.DataFrame, groups: pl.DataFrame, amount: str, measures: Sequence[str]) -> pl.DataFrame:
    doublings = count_doublings(amount)
    measured = groups.select("group_number", amount, *measures).unpivot(
        on=measures, index=["group_number", amount], variable_name="measure", value_name="measured"
    )
    halves = measured.drop_nulls().with_columns(
        extra=pl.when(pl.col("measured") <= pl.col("measured").median().over("measure"))
        .then(pl.lit("fewer"))
        .otherwise(pl.lit("more"))
    )
    keys = ("measure", "extra", "dropout", "variant", "portion")
    return (
        rates.join(halves, on="group_number", maintain_order="left")
        .group_by(*keys, doublings.floor().alias("bin"), maintain_order=True)
        .agg(
            (2 ** doublings.mean() - 1).alias(amount),
            groups=pl.len(),
            mean=pl.col("rate").mean(),
            margin=mean_margin("rate"),
        )
        .rename({"mean": "rate"})
        .sort("bin", maintain_order=True)
        .drop("bin")
    )
