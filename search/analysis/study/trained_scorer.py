"""One set of weights, evaluated as the model is validated and with the scorer of its training."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.intervals import Student
from search.analysis.statistics.paired import decisive_p
from spaces.records import TRAINED

_KEYS = ("name", "condition", "variant")


def compare_with_trained(scores: pl.DataFrame) -> pl.DataFrame:
    """Return name, condition, variant, pairs, trained, value, mean, low, high, p, q of each metric.

    `scores` has number, name, condition, variant, sign and `last`, a cost, sign * metric. trained
    and value are means of last validations; the other columns are those of `compare_pairs`.
    """
    values = scores.with_columns(value=pl.col("sign") * pl.col("last")).drop_nulls("value")
    words = pl.col("condition").str.split(" ")
    trained = values.filter(words.list.contains(TRAINED)).with_columns(
        condition=words.list.set_difference([TRAINED]).list.join(" ")
    )
    trained = trained.select("number", *_KEYS, trained="value")
    pairs = values.join(trained, on=["number", *_KEYS], maintain_order="left")
    return compare_pairs(pairs, _KEYS, "trained").sort(_KEYS)


def compare_pairs(pairs: pl.DataFrame, keys: Sequence[str], against: str) -> pl.DataFrame:
    """Return keys, pairs, `against`, value, mean, low, high, p and q, by key in the pairs' order.

    `pairs` has a row for each pair and key, with columns `against` and value, whose means are
    given; mean is that of value - against, low and high its 95 % t-interval, null if there is none;
    p is two-sided (`PairedDifference.decisive_p`), q is p by Holm's correction over the rows; both
    are null below four pairs.
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
    p = decisive_p(cells)
    columns = {"low": low, "high": high, "p": p, "q": adjust_p(p)}
    series = (pl.Series(name, values).fill_nan(None) for name, values in columns.items())
    rows = cells.with_columns(series)
    return rows.select(*keys, "pairs", against, "value", "mean", *columns)
