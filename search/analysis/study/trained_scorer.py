"""One set of weights evaluated in two ways: as the model is validated, and with the scorer that it was trained with."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from search.analysis.statistics.intervals import Student, paired_p
from spaces.records import TRAINED

_KEYS = ("name", "condition", "variant")


def compare_with_trained(scores: pl.DataFrame) -> pl.DataFrame:
    """name, condition, variant, pairs, trained, value, mean, low, high and p, a row for each metric with both, sorted.

    `scores` has number, name, condition, variant, sign and `last`, a cost, sign * metric. Trained and value are means
    over trials of their last validations, mean is value - trained, paired by trial, low and high its 95 % t-interval, p
    of the two-sided paired t-test; NaN for a trial alone.
    """
    values = scores.with_columns(value=pl.col("sign") * pl.col("last")).drop_nulls("value")
    words = pl.col("condition").str.split(" ")
    trained = values.filter(words.list.contains(TRAINED)).with_columns(
        condition=words.list.set_difference([TRAINED]).list.join(" ")
    )
    pairs = values.join(trained.select("number", *_KEYS, trained="value"), on=["number", *_KEYS], maintain_order="left")
    return compare_pairs(pairs, _KEYS, "trained").sort(_KEYS)


def compare_pairs(pairs: pl.DataFrame, keys: Sequence[str], against: str) -> pl.DataFrame:
    """keys, pairs, `against`, value, mean, low, high and p of columns `against` and value, one row per pair and key.

    As compare_with_trained has them, in the order of the pairs.
    """
    change = pl.col("value") - pl.col(against)
    cells = pairs.group_by(*keys, maintain_order=True).agg(
        pl.col(against).mean(),
        pl.col("value").mean(),
        pairs=pl.len(),
        mean=change.mean(),
        deviation=change.std(),
        changes=change,
    )
    low, high = Student().bounds(cells)
    found = cells.with_columns(low=pl.Series(low), high=pl.Series(high), p=pl.Series(paired_p(cells)))
    return found.select(*keys, "pairs", against, "value", "mean", "low", "high", "p")
