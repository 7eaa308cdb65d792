"""The groups of a study, trials of equal structural parameters: their sizes and best trials."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from search.analysis.study.scores import METRIC, sort_statistics
from search.analysis.study.top_k import median_interval, top_k_statistics

_SIZED = ("task", "model")
"""The sections of a configuration whose integers are a group's sizes."""


def list_groups(ended: pl.DataFrame) -> pl.DataFrame:
    """Return group_number, trials, params and the integers of the task and model by their path.

    `params` are those of the first trial, as JSON. No rows if groups have fewer than two trials on
    average, as they are no ensembles then. Of `config` only that of each group's first trial that
    has one is read.
    """
    firsts = (
        ended.lazy()
        .sort("number")
        .group_by("group_number")
        .agg(pl.len().alias("trials"), pl.col("params").first(), pl.col("config").drop_nulls().first())
        .sort("group_number")
        .collect()
    )
    if 2 * firsts.height > ended.height:
        firsts = firsts.clear()
    sizes: list[dict[str, int]] = []
    for text in firsts["config"]:
        config: Mapping[str, Any] = json.loads(text) if text else {}
        fields = ((section, *field) for section in _SIZED for field in config.get(section, {}).items())
        # The type itself, as a bool is an int.
        sizes.append({f"{section}.{field}": value for section, field, value in fields if type(value) is int})
    columns = pl.DataFrame(sizes, infer_schema_length=None)
    groups = firsts.drop("config")
    return groups.hstack(columns) if columns.width else groups


def group_statistics(scores: Iterable[pl.DataFrame], groups: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """Return the top-k statistics of best validations in each group; `scores` come in parts."""
    numbers = groups.select("group_number")
    parts = [
        top_k_statistics(
            some.join(numbers, on="group_number", how="semi").with_columns(cost="best"),
            ["group_number", *METRIC],
        )
        for some in scores
    ]
    return sort_statistics(pl.concat(parts), order, "group_number")


def compare_within_groups(statistics: pl.DataFrame) -> pl.DataFrame:
    """Return name, condition, variant, portion, groups, better, median, low, high.

    The last three are of the changes against raw over groups, `better` the groups with less cost.
    """
    better = pl.col("sign") * (pl.col("value") - pl.col("raw")) < 0
    return (
        statistics.filter(pl.col("change").is_not_null())
        .group_by(*METRIC, "variant", "portion", maintain_order=True)
        .agg(groups=pl.len(), better=better.sum(), **median_interval("change"))
    )


def trend(statistics: pl.DataFrame, amount: str) -> pl.DataFrame:
    """Return name, condition, variant, portion, `amount`, groups, median, low, high.

    Values are over groups of like amount, a column of the statistics that is 0 or more: 0, 1-2,
    3-6, 7-14, ..., of which a log-uniform distribution draws as many each.
    """
    doublings = count_doublings(amount)
    return (
        statistics.filter(pl.col(amount).is_not_null())
        .group_by(*METRIC, "variant", "portion", doublings.floor().alias("bin"), maintain_order=True)
        .agg((2 ** doublings.mean() - 1).alias(amount), groups=pl.len(), **median_interval("value"))
        .sort("bin", maintain_order=True)
        .drop("bin")
    )


def count_doublings(amount: str) -> pl.Expr:
    """Return log2(amount + 1), in which 0, 1, 3, 7 are one apart."""
    return (pl.col(amount) + 1).log(2)
