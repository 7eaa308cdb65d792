"""The groups of a study, trials that share their structural parameters: their sizes and their best trials."""

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

    `params` are those of the first trial, as JSON.
    No rows unless groups have two trials on average: then a group is a trial rather than an ensemble. Of `config` only
    that of each group's first trial that has one is read.
    """
    firsts = (
        ended.lazy()
        .sort("number")
        .group_by("group_number")
        .agg(trials=pl.len(), params=pl.col("params").first(), config=pl.col("config").drop_nulls().first())
        .sort("group_number")
        .collect()
    )
    if 2 * firsts.height > ended.height:
        firsts = firsts.clear()
    found: list[dict[str, int]] = []
    for text in firsts["config"]:
        config: Mapping[str, Any] = json.loads(text) if text else {}
        fields = ((section, *field) for section in _SIZED for field in config.get(section, {}).items())
        found.append({f"{section}.{field}": value for section, field, value in fields if type(value) is int})  # no bool
    sizes = pl.DataFrame(found, infer_schema_length=None)
    groups = firsts.drop("config")
    return groups.hstack(sizes) if sizes.width else groups


def group_statistics(scores: Iterable[pl.DataFrame], groups: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """Return group_number, name, condition and the top-k statistics of each trial's best validation in its group.

    `scores` come some metrics at a time, each time all of them.
    """
    found = [
        top_k_statistics(
            some.join(groups.select("group_number"), on="group_number", how="semi").with_columns(cost="best"),
            ["group_number", *METRIC],
        )
        for some in scores
    ]
    return sort_statistics(pl.concat(found), order, "group_number")


def compare_within_groups(statistics: pl.DataFrame) -> pl.DataFrame:
    """Return the changes against raw over groups.

    Columns: name, condition, variant, portion, groups, better, median, low, high.
    """
    better = pl.col("sign") * (pl.col("value") - pl.col("raw")) < 0
    return (
        statistics.filter(pl.col("change").is_not_null())
        .group_by(*METRIC, "variant", "portion", maintain_order=True)
        .agg(groups=pl.len(), better=better.sum(), **median_interval("change"))
    )


def trend(statistics: pl.DataFrame, amount: str) -> pl.DataFrame:
    """Return values over groups of like amount.

    Columns: name, condition, variant, portion, `amount`, groups, median, low, high.
    `amount`: a column of the statistics that is 0 or more; alike are 0, 1-2, 3-6, 7-14, ..., of which a log-uniform
    distribution draws as many each.
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
