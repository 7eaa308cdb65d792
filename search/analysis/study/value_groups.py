"""Trials grouped by a value: the mean objective of each group, with its interval."""

from __future__ import annotations

from typing import Any

import polars as pl

from search.analysis.statistics.paired import mean_interval

_MOST_SINGLE = 12
"""Numbers of more values are grouped by ranges."""
RANGES = 8
MOST_GROUPS = 100
"""Groups that are told, those of the most trials."""


def has_ranges(values: pl.Series) -> bool:
    """Return whether values are numbers of which so many differ that they are grouped by ranges."""
    return values.dtype.is_numeric() and values.drop_nulls().n_unique() > _MOST_SINGLE


def assign_ranges(values: pl.Series, ranges: int) -> pl.Series:
    """Return each number's range, of so many with about as many numbers each."""
    # Equal numbers have equal ranks, so that they are in one range.
    return (values.rank("min") - 1) * ranges // values.count()


def group_by_value(values: pl.DataFrame) -> pl.DataFrame:
    """Return one row per value: group (a text), trials, mean, low and high (95 %, Student's), least and most.

    `values` has the columns value and objective; rows without an objective are left out. Numbers that have more than
    twelve values are grouped into eight ranges with about as many trials each. The rows are in the order of the values,
    trials without one last.
    """
    known = values.drop_nulls("objective")
    is_ranged = has_ranges(known["value"])
    known = known.with_columns(key=assign_ranges(known["value"], RANGES) if is_ranged else known["value"])
    rows: list[dict[str, Any]] = []
    for _, own in known.group_by("key", maintain_order=True):
        numbers = own["objective"].to_numpy()
        low, high = mean_interval(numbers)
        first, last = own["value"].min(), own["value"].max()
        name = "none" if first is None else f"{first:.4g} to {last:.4g}" if is_ranged else str(first)
        numbered = {"mean": float(numbers.mean()), "low": low, "high": high}
        ends = {"least": float(numbers.min()), "most": float(numbers.max())}
        rows.append({"group": name, "first": first, "trials": own.height, **numbered, **ends})
    schema = {"group": pl.String, "first": known["value"].dtype, "trials": pl.Int64}
    frame = pl.DataFrame(rows, {**schema, **dict.fromkeys(("mean", "low", "high", "least", "most"), pl.Float64)})
    return (
        frame.sort("trials", descending=True, maintain_order=True)
        .head(MOST_GROUPS)
        .sort("first", nulls_last=True, maintain_order=True)
        .drop("first")
        .with_columns(pl.col("low", "high").fill_nan(None))
    )
