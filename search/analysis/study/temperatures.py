"""One set of weights evaluated at several temperatures of attention."""

from __future__ import annotations

import polars as pl

from search.analysis.study.trained_scorer import compare_pairs
from spaces.records import TRAINED


def compare_temperatures(scores: pl.DataFrame) -> pl.DataFrame:
    """Return shift, temperature, pairs, at_one, value, mean, low, high, p, q, except at 1.

    `scores` of one metric has number, condition, variant, sign and `last`, a cost, sign * metric.
    Raw parameters count; a condition without `temperature=` is at 1. at_one and value are means
    over trials, paired by trial; the other columns are those of `compare_pairs`.
    """
    number = pl.col("condition").str.extract(r"(?:^| )temperature=([0-9.eE+-]+)$").cast(pl.Float64)
    is_trained = pl.col("condition").str.contains(TRAINED, literal=True)
    values = (
        scores.filter(pl.col("variant") == "raw", ~is_trained)
        .with_columns(
            value=pl.col("sign") * pl.col("last"),
            shift=pl.col("condition").str.replace(r" ?\btemperature=\S+", ""),
            labelled=pl.col("condition").str.contains(r"\btemperature="),
            temperature=number,
        )
        .drop_nulls("value")
    )
    at_one = values.filter(~pl.col("labelled")).select("number", "shift", at_one="value")
    pairs = values.drop_nulls("temperature")
    pairs = pairs.join(at_one, on=["number", "shift"], maintain_order="left")
    return compare_pairs(pairs, ("shift", "temperature"), "at_one").sort("shift", "temperature")
