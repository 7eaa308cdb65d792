"""Trials grouped by a value: the mean objective of each group, with its interval."""

from __future__ import annotations

from typing import Any

import polars as pl

from search.analysis.statistics.paired import mean_interval

_MOST_SINGLE = 12
"""Numbers with more values are grouped by ranges."""
RANGES = 8
MOST_GROUPS = 100
"""The most groups that are shown, those of the most trials."""


def has_ranges(values: pl.Series) -> bool:
    """Return True if values are numbers, so many different ones that they are grouped by ranges."""
    return values.dtype.is_numeric() and values.drop_nulls().n_unique() > _MOST_SINGLE


def assign_ranges(values: pl.Series, ranges: int) -> pl.Series:
    """Return each number's range, of `ranges` with about as many numbers each."""
    # Equal numbers have equal ranks, so that they are in one range.
    return (values.rank("min") - 1) * ranges // values.count()


def group_by_value(values: pl.DataFrame) -> pl.DataFrame:
    """Return group (a text), trials, mean, low, high (95 %, Student's), least, most of each value.

    `values` has the columns value and objective; rows without an objective are left out. Numbers of
    more than twelve values are grouped into eight ranges with about as many trials each. Rows are
    in the order of the values, trials without one last.
    """
    known = values.drop_nulls("objective")
    is_ranged = has_ranges(known["value"])
    known = known.with_columns(key=assign_ranges(known["value"], RANGES) if is_ranged else known["value"])
    rows: list[dict[str, Any]] = []
    for _, trials in known.group_by("key", maintain_order=True):
        results = trials["objective"].to_numpy()
        low, high = mean_interval(results)
        first, last = trials["value"].min(), trials["value"].max()
        name = str(first)
        if first is None:
            name = "none"
        elif is_ranged:
            name = f"{first:.4g} to {last:.4g}"
        numbered = {"mean": float(results.mean()), "low": low, "high": high}
        ends = {"least": float(results.min()), "most": float(results.max())}
        rows.append({"group": name, "first": first, "trials": trials.height, **numbered, **ends})
    numbers = dict.fromkeys(("mean", "low", "high", "least", "most"), pl.Float64)
    schema = {"group": pl.String, "first": known["value"].dtype, "trials": pl.Int64, **numbers}
    frame = pl.DataFrame(rows, schema)
    return (
        frame.sort("trials", descending=True, maintain_order=True)
        .head(MOST_GROUPS)
        .sort("first", nulls_last=True, maintain_order=True)
        .drop("first")
        .with_columns(pl.col("low", "high").fill_nan(None))
    )
