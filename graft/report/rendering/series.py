"""The metrics that a study's figures show, and their names."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

Series = tuple[str, str]
"""Name and condition of a metric."""

ALL_ZERO = "All metrics are 0 in the best trials."
"""The reason why a study has no `drawn_series`."""

_MOST_SERIES = 3


def drawn_series(statistics: pl.DataFrame) -> list[Series]:
    """Return the metrics that figures show; the objective's comes first, as in `statistics`."""
    known = statistics.filter(pl.col("kept") == "best")
    varies = (pl.col("value") != 0).any()
    series = known.group_by("name", "condition", maintain_order=True).agg(varies=varies)
    wanted = series.with_row_index("row").filter((pl.col("row") == 0) | (pl.col("condition") == ""))
    return wanted.filter("varies").select("name", "condition").head(_MOST_SERIES).rows()


def say_series(statistics: pl.DataFrame, shown: Sequence[Series]) -> str:
    """Return a caption's sentence on the metrics that `drawn_series` left; empty if it has all."""
    every = statistics.select("name", "condition").n_unique()
    text = f" Shown are {len(shown)} of {every} metrics; the tables have all."
    return "" if len(shown) == every else text


def series_label(series: Series) -> str:
    """Return a metric as an axis names it."""
    name, condition = series
    return f"{name}, {condition}" if condition else name


def is_series(series: Series) -> pl.Expr:
    """Return the condition of the rows of one metric."""
    return (pl.col("name") == series[0]) & (pl.col("condition") == series[1])


def portions_of(frame: pl.DataFrame) -> dict[str, int]:
    """Return portion -> the most trials counted in it, without those that count no more."""
    counted = frame.group_by("portion").agg(pl.col("counted").max()).sort("portion")
    different = counted.unique("counted", keep="first", maintain_order=True)
    return dict(different.cast({"portion": pl.String}).iter_rows())


def variants_of(frame: pl.DataFrame) -> list[str]:
    """Return the variants of the rows, raw first."""
    variants = frame["variant"].unique().to_list()
    return sorted(variants, key=lambda variant: (variant != "raw", variant))


def portion_title(portion: str, most: int) -> str:
    """Return the heading of a panel; `most`: as in portions_of."""
    return f"mean of the {portion}" if most > 1 else "best trial"
