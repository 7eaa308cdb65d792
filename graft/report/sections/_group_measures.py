"""Measures of a group of trials (paper 003): its task's gap, its model's extra dimensions."""

from __future__ import annotations

import polars as pl

GAP = "task.generalisation_gap"
"""A fact of tasks that have one: how much longer validation sequences are than trained ones."""

MEASURES = ("width_multiplier", "value_coefficient")
"""Measures of a group's extra dimensions (5.5)."""


def measure_groups(groups: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of StudyData with `gap` and MEASURES, null where they are undefined.

    width_multiplier is d / (v - 1), value_coefficient (d_v - v + 1) / (d - v + 1): the dimensions
    beyond the v - 1 that tell v tokens apart, v the vocabulary, d the width, d_v that of values.
    """
    gap = pl.col("params").str.json_decode(pl.Struct({GAP: pl.Float64})).struct.field(GAP)
    rest = pl.exclude("group_number", "trials", "params")
    groups = groups.select("group_number", "trials", gap.alias("gap"), rest)
    needed = ("task.vocabulary", "model.width", "model.value_width")
    if not set(needed) <= set(groups.columns):
        return groups.with_columns(pl.lit(None, pl.Float64).alias(name) for name in MEASURES)
    least, width, value_width = pl.col(needed[0]) - 1, pl.col(needed[1]), pl.col(needed[2])
    beyond = (value_width - least) / (width - least)
    coefficient = pl.when(width == least).then(0.0).otherwise(beyond)
    return groups.with_columns(width_multiplier=width / least, value_coefficient=coefficient)
