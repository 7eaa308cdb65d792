"""Maps of a metric over conditions of two numbers, `length=50 sigma=3`."""

from __future__ import annotations

import polars as pl

from search.analysis.study.top_k import RAW

TWO_NUMBERS = r"^(?P<across>\w+)=(?P<x>[\d.]+) (?P<up>\w+)=(?P<y>[\d.]+)$"
_FEWEST = 2
"""The fewest values of each number in a map; its known pairs must outnumber either's values."""


def map_conditions(scores: pl.DataFrame, panels: pl.DataFrame) -> pl.DataFrame:
    """Return across, up, panel, x, y, value: means of last raw validations, sorted by all columns.

    `scores`, of one metric, has number, condition, variant, sign and `last`, a cost, sign * metric;
    `panels` has number and panel, a text.
    """
    raw = scores.filter(pl.col("variant") == RAW)
    groups = pl.col("condition").str.extract_groups(TWO_NUMBERS)
    cells = raw.with_columns(found=groups).unnest("found").drop_nulls(["x", "y"])
    keys = ["across", "up", "panel", "x", "y"]
    means = (
        cells.join(panels, on="number")
        .with_columns(pl.col("x", "y").cast(pl.Float64), value=pl.col("sign") * pl.col("last"))
        .group_by(keys)
        .agg(pl.col("value").mean())
        .sort(keys)
    )
    wide = pl.all_horizontal(pl.col("x", "y").n_unique().over("across", "up") >= _FEWEST)
    crossed = pl.len().over("across", "up", "panel") > pl.max_horizontal(
        pl.col("x").n_unique().over("across", "up"), pl.col("y").n_unique().over("across", "up")
    )
    return means.filter(wide, crossed)
