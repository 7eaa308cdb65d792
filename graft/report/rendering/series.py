"""What of a study's statistics its figures show, and in which words."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

Series = tuple[str, str]
"""Name and condition of a metric."""

ALL_ZERO = "All metrics are 0 in the best trials."
"""Why a study has no `drawn_series`."""

_MOST_SERIES = 3


def drawn_series(statistics: pl.DataFrame) -> list[Series]:
    """Return the metrics that figures show: the objective's first, then plain ones, without those that are always 0.

    `statistics` are those of all trials, with the objective's metric first.
    """
    known = statistics.filter(pl.col("kept") == "best")
    series = known.group_by("name", "condition", maintain_order=True).agg(varies=(pl.col("value") != 0).any())
    wanted = series.with_row_index("row").filter((pl.col("row") == 0) | (pl.col("condition") == ""))
    return wanted.filter("varies").select("name", "condition").head(_MOST_SERIES).rows()


def say_series(statistics: pl.DataFrame, shown: Sequence[Series]) -> str:
    """Return the sentence of a caption that says how many metrics `drawn_series` left; empty where it left none."""
    every = statistics.select("name", "condition").n_unique()
    return "" if len(shown) == every else f" Shown are {len(shown)} of {every} metrics; the tables have all."


def series_label(series: Series) -> str:
    """Return a metric as an axis names it."""
    name, condition = series
    return f"{name}, {condition}" if condition else name


def is_series(series: Series) -> pl.Expr:
    """Rows of one metric."""
    return (pl.col("name") == series[0]) & (pl.col("condition") == series[1])


def portions_of(frame: pl.DataFrame) -> dict[str, int]:
    """Portion -> the most trials counted in it, for those that differ from smaller ones: of 50, 1 % is the best."""
    counted = frame.group_by("portion").agg(pl.col("counted").max()).sort("portion")
    return dict(counted.unique("counted", keep="first", maintain_order=True).cast({"portion": pl.String}).iter_rows())


def variants_of(frame: pl.DataFrame) -> list[str]:
    """Raw first."""
    found = frame["variant"].unique().to_list()
    return sorted(found, key=lambda variant: (variant != "raw", variant))


def portion_title(portion: str, most: int) -> str:
    """Return the heading of a panel; `most`: as in portions_of."""
    return f"mean of the {portion}" if most > 1 else "best trial"
