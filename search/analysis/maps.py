"""Maps of a metric over conditions of two numbers, `length=50 sigma=3`: one for each scorer that trials have."""

from __future__ import annotations

import polars as pl

from search.analysis.tails import RAW

_TWO = r"^(?P<across>\w+)=(?P<x>[\d.]+) (?P<up>\w+)=(?P<y>[\d.]+)$"
_SCORER = "model.scorer"
_FEWEST = 2
"""Values of each number that make a map; and more pairs of them must be known than either has values."""


def maps(scores: pl.DataFrame, params: pl.DataFrame, metric: str) -> pl.DataFrame:
    """across, up, scorer, x, y, value: the mean over trials of their last raw validations, in the order of all these.

    `scores` has number, name, condition, variant, sign and `last`, a cost, sign * metric; `params` number and params,
    JSON. Scorer is empty where trials do not differ in it.
    """
    own = scores.filter((pl.col("name") == metric) & (pl.col("variant") == RAW))
    places = own.with_columns(found=pl.col("condition").str.extract_groups(_TWO)).unnest("found").drop_nulls(["x", "y"])
    scorer = pl.col("params").str.json_decode(pl.Struct({_SCORER: pl.String})).struct.field(_SCORER).fill_null("")
    keys = ["across", "up", "scorer", "x", "y"]
    cells = (
        places.join(params.select("number", scorer=scorer), on="number")
        .with_columns(pl.col("x", "y").cast(pl.Float64), value=pl.col("sign") * pl.col("last"))
        .group_by(keys)
        .agg(pl.col("value").mean())
        .sort(keys)
    )
    wide = pl.all_horizontal(pl.col("x", "y").n_unique().over("across", "up") >= _FEWEST)
    crossed = pl.len().over("across", "up", "scorer") > pl.max_horizontal(
        pl.col("x").n_unique().over("across", "up"), pl.col("y").n_unique().over("across", "up")
    )
    return cells.filter(wide, crossed)
