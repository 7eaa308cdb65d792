"""Grids of averages from one training run (`averaging: bema_grid`): how good each pair of powers is."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from search.analysis.tails import RAW, mean_margin

_GRID = r"^(?:(?P<rest>.*) )?kappa=(?P<kappa>[\d.]+)(?: eta=(?P<eta>[\d.]+))?$"
"""The condition of a metric of the grid; an EMA has no eta."""


class Split(NamedTuple):
    """Scores of metrics by where they are from."""

    plain: pl.DataFrame
    grid: pl.DataFrame
    """With kappa and eta (null: the plain EMA), and the rest of the condition in its place."""


def split(scores: pl.DataFrame) -> Split:
    """Take the scores of grids of averages out of the others; `scores` has a column condition."""
    found = pl.col("condition").str.extract_groups(_GRID)
    marked = scores.with_columns(found=found)
    in_grid = pl.col("found").struct.field("kappa").is_not_null()
    parts = [
        pl.col("found").struct.field("rest").fill_null("").alias("condition"),
        *(pl.col("found").struct.field(name).cast(pl.Float64) for name in ("kappa", "eta")),
    ]
    return Split(marked.filter(~in_grid).drop("found"), marked.filter(in_grid).with_columns(parts).drop("found"))


def rest_of(condition: str) -> str:
    """A condition without the powers of a grid."""
    found = pl.select(pl.lit(condition).str.extract_groups(_GRID)).to_series().struct.unnest().row(0, named=True)
    return condition if found["kappa"] is None else found["rest"] or ""


def compare(scores: Split, name: str, condition: str) -> pl.DataFrame:
    """kappa, eta, trials, value, raw, change and margin of each pair of powers, for one metric.

    `scores` has number, name, condition, variant, sign and `last`, a cost, sign * metric. Value and raw are means over
    the trials of their last validations, change is (value - raw) / |raw|, margin half its 95 % interval, which takes
    raw's mean as given; null where fewer than five trials are counted, change where raw is zero.
    """
    own = (pl.col("name") == name) & (pl.col("condition") == condition)
    raw = scores.plain.filter(own, pl.col("variant") == RAW).select("number", raw=pl.col("sign") * pl.col("last"))
    value, before = pl.col("value").mean(), pl.col("raw").mean()
    off = pl.when(before != 0).then(before.abs())
    return (
        scores.grid.filter(own)
        .select("number", "kappa", "eta", value=pl.col("sign") * pl.col("last"))
        .join(raw, on="number")
        .drop_nulls(["value", "raw"])
        .with_columns(difference=pl.col("value") - pl.col("raw"))
        .group_by("kappa", "eta")
        .agg(
            trials=pl.len(),
            value=value,
            raw=before,
            change=(value - before) / off,
            margin=mean_margin("difference") / off,
        )
        .sort("kappa", "eta", nulls_last=True)
    )
