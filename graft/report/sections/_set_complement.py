"""What paper 003 measures of a group of trials of the set complement: its generalisation gap and extra dimensions."""

from __future__ import annotations

import polars as pl

GAP = "task.generalisation_gap"
"""The parameter that says how much longer than trained a task's validation is."""

MEASURES = ("width_multiplier", "value_coefficient")
"""Measures of a group's extra dimensions (5.5)."""


def measure(groups: pl.DataFrame) -> pl.DataFrame:
    """The groups of StudyData with their `gap` and MEASURES; null where the task or the model has nothing such.

    width_multiplier is d / (v - 1), value_coefficient (d_v - v + 1) / (d - v + 1): the room beyond the v - 1 dimensions
    that the set complement needs, v the vocabulary, d the width, d_v the width of values.
    """
    gap = pl.col("params").str.json_decode(pl.Struct({GAP: pl.Float64})).struct.field(GAP)
    groups = groups.select("group_number", "trials", gap.alias("gap"), pl.exclude("group_number", "trials", "params"))
    needed = ("task.vocabulary", "model.width", "model.value_width")
    if not set(needed) <= set(groups.columns):
        return groups.with_columns(pl.lit(None, pl.Float64).alias(name) for name in MEASURES)
    least, width, value_width = pl.col(needed[0]) - 1, pl.col(needed[1]), pl.col(needed[2])
    coefficient = pl.when(width == least).then(0.0).otherwise((value_width - least) / (width - least))
    return groups.with_columns(width_multiplier=width / least, value_coefficient=coefficient)
