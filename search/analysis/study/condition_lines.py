"""A metric over one number of its conditions: `functions=1 inputs=5`, `functions=2 inputs=5`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import polars as pl

from search.analysis.metrics import UNBOUNDED, Range
from search.analysis.statistics.intervals import mean_with_interval
from search.analysis.study.top_k import RAW

NUMBER = re.compile(r"(\w+)=(-?\d+\.?\d*(?:e-?\d+)?)")
"""A part of a condition that is a number, `sigma=3`."""
FEWEST = 3
"""The fewest values of a number that make a line."""
LINE = ("across", "rest")
"""The number on a line's x axis, and the condition without it."""


def sweep_conditions(conditions: Iterable[str]) -> pl.DataFrame:
    """Return condition, across, x, rest (it may be empty) of each number that makes a line."""
    rows: list[tuple[str, str, float, str]] = []
    for condition in conditions:
        parts = condition.split(" ")
        for index, part in enumerate(parts):
            if match := NUMBER.fullmatch(part):
                rest = " ".join(parts[:index] + parts[index + 1 :])
                rows.append((condition, match[1], float(match[2]), rest))
    schema = {"condition": pl.String, "across": pl.String, "x": pl.Float64, "rest": pl.String}
    numbers = pl.DataFrame(rows, schema=schema, orient="row")
    return numbers.filter(pl.col("x").n_unique().over(LINE) >= FEWEST)


def trace_lines(
    scores: pl.DataFrame, series: pl.DataFrame, without: Collection[str] = (), within: Range = UNBOUNDED
) -> pl.DataFrame:
    """Return across, rest, series, x, trials, mean, low, high: means of last raw validations.

    `scores`, of one metric, has number, condition, variant, sign and `last`, a cost, sign * metric;
    `series` has number and series, a text, whose order is kept. low and high are the ends of
    Student's 95 % interval, cut at the metric's range `within`; null for one trial. `without` names
    numbers over which no line goes.
    """
    swept = sweep_conditions(scores["condition"].unique().sort())
    swept = swept.filter(~pl.col("across").is_in(list(without)))
    ordered = series["series"].unique(maintain_order=True).to_list()
    return (
        scores.filter(pl.col("variant") == RAW)
        .join(swept, on="condition")
        .join(series, on="number")
        .with_columns(value=pl.col("sign") * pl.col("last"))
        .drop_nulls("value")
        .group_by(*LINE, "series", "x")
        .agg(**mean_with_interval(within=within))
        .sort(*LINE, pl.col("series").replace_strict(ordered, range(len(ordered))), "x")
    )


def order_lines(lines: pl.DataFrame, condition: str) -> pl.DataFrame:
    """Return the lines by LINE: those that go through `condition` first, then the longest."""
    asked = set(condition.split(" "))

    def sort_key(line: pl.DataFrame) -> tuple[bool, int, str, str]:
        across, rest = line["across"][0], line["rest"][0]
        is_asked = any(part.startswith(f"{across}=") for part in asked)
        through = set(rest.split(" ")) - {""} <= asked and is_asked
        return not through, -line["x"].n_unique(), across, rest

    parts = lines.partition_by(LINE, maintain_order=True)
    return pl.concat(sorted(parts, key=sort_key)) if parts else lines
