"""Metrics over the generalisation gaps of trials, with the averages of one grid."""

from __future__ import annotations

import polars as pl

from search.analysis.study.averaging_grid import split_powers
from search.analysis.study.top_k import RAW

AVERAGES = {"best": 1, "mean of the best 10": 10, "mean of all": None}
"""The number of averages of a trial that are taken (paper 003, 6.2 and Figure 3); None: all."""


def averages_by_gap(grid: pl.DataFrame, plain: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return number, gap, kind, value: each trial's raw parameters and AVERAGES over its powers.

    `grid` are the scores of averages and `plain` those of raw parameters, of one metric; both have
    number, condition, variant, sign and `last`, a cost, sign * metric. `gaps` has number and gap.
    An EMA, without eta, does not count.
    """
    value = pl.col("sign") * pl.col("last")
    raw = plain.filter(pl.col("variant") == RAW).select("number", value=value, kind=pl.lit(RAW))
    pairs = split_powers(grid).drop_nulls("eta").sort("number", "last")
    parts = [raw]
    for kind, count in AVERAGES.items():
        rank = pl.int_range(pl.len()).over("number")
        kept = pairs if count is None else pairs.filter(rank < count)
        means = kept.group_by("number").agg(value=value.mean())
        parts.append(means.select("number", "value", kind=pl.lit(kind)))
    joined = pl.concat([part.cast({"number": pl.Int64, "value": pl.Float64}) for part in parts])
    joined = joined.join(gaps, on="number").select("number", "gap", "kind", "value")
    return joined.sort("gap", "number", maintain_order=True)
