"""The metrics of a study as scores that can be ranked: each trial's best and last validation.

The trials are the feasible ones with an objective.

Legend: a *score* is one metric of one trial under one condition and variant; its *cost* is the
metric turned so that less is better, sign * metric.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from search.analysis.study.top_k import RAW, rank, top_k_statistics

METRIC = ("name", "condition")
"""The columns that identify a metric; each has its variants."""
Metric = tuple[str, str, int]
"""Name, condition, and the sign that makes it a cost."""
Summaries = Mapping[Metric, pl.DataFrame]
"""Metric -> a row for each trial and variant: number, group_number, variant, best and last, both costs."""

_POINTS = 30
"""Points of a distribution for each factor of e in the rank."""


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Metrics that one section of a report reserves, so that no other table ranks them."""

    names: Collection[str] = ()
    """The first words of their names."""
    conditions: str | None = None
    """A regular expression of their conditions; its first group is what is left without what is reserved."""

    def holds(self, metric: Metric) -> bool:
        """Return True if a metric is reserved."""
        name, condition, _ = metric
        if name.partition(" ")[0] in self.names:
            return True
        return self.conditions is not None and re.search(self.conditions, condition) is not None

    def rest_of(self, condition: str) -> str:
        """Return a condition without what is reserved of it."""
        if self.conditions is None:
            return condition
        match = re.search(self.conditions, condition)
        return (match[1] or "") if match else condition


def summarise(batches: Iterable[pl.DataFrame], ended: pl.DataFrame, metric: str, direction: str) -> Summaries:
    """Reduce batches of metrics, each of which has all rows of some trials in the order of steps.

    `ended`: the trials that count. More is better for `metric`, the objective's, if the study
    maximizes it; for others if the name contains `accuracy`.
    """
    value = pl.col("value")
    largest: Any = ended["number"].max() or 0
    number_type = pl.UInt32 if largest < 2**32 else pl.Int64
    parts: dict[Metric, list[pl.DataFrame]] = {}
    for batch in batches:
        whole = (
            batch.group_by("number", *METRIC, "variant", maintain_order=True)
            .agg(lowest=value.min(), highest=value.max(), last=value.last())
            .join(ended.select("number", "group_number"), on="number")
            .with_columns(pl.col("variant").cast(pl.Categorical))
        )
        for (name, condition), part in whole.partition_by(*METRIC, as_dict=True, include_key=False).items():
            sign, costs = 1, {"best": pl.col("lowest"), "last": pl.col("last")}
            if direction == "maximize" if name == metric else "accuracy" in name:
                sign, costs = -1, {"best": -pl.col("highest"), "last": -pl.col("last")}
            numbers = pl.col("number", "group_number").cast(number_type)
            chosen = part.select(numbers, "variant", **costs)
            parts.setdefault((name, condition, sign), []).append(chosen)
    return {key: pl.concat(frames) for key, frames in parts.items()}


def score(summaries: Summaries, text: pl.DataType = pl.String()) -> pl.DataFrame:
    """Return number, group_number, name, condition, variant, sign, best and last, both costs.

    `text` is the type of name, condition and variant: categories take a fourth of the memory.
    """
    parts = [
        summary.select(
            pl.col("number", "group_number").cast(pl.Int64),
            pl.lit(name, text).alias("name"),
            pl.lit(condition, text).alias("condition"),
            pl.col("variant").cast(text),
            pl.lit(sign, pl.Int32).alias("sign"),
            "best",
            "last",
        )
        for (name, condition, sign), summary in summaries.items()
    ]
    empty = pl.DataFrame(schema={**_SCORES, **dict.fromkeys((*METRIC, "variant"), text)})
    return pl.concat([empty, *parts])


_SCORES = {
    **dict.fromkeys(("number", "group_number"), pl.Int64()),
    **dict.fromkeys((*METRIC, "variant"), pl.String()),
    "sign": pl.Int32(),
    **dict.fromkeys(("best", "last"), pl.Float64()),
}


def list_metrics(summaries: Summaries) -> pl.DataFrame:
    """Return name, condition and variant of each metric, each once."""
    empty = pl.DataFrame(schema=dict.fromkeys((*METRIC, "variant"), pl.String()))
    columns = [
        summary.select(
            pl.lit(name).alias("name"),
            pl.lit(condition).alias("condition"),
            pl.col("variant").cast(pl.String),
        )
        for (name, condition, _), summary in summaries.items()
    ]
    return pl.concat([empty, *(frame.unique() for frame in columns)])


def order_metrics(measured: pl.DataFrame, metric: str, condition: str) -> pl.DataFrame:
    """Return name, condition, variant, order: the objective's metric first, raw before others."""
    is_metric, same = pl.col("name") == metric, pl.col("condition") == condition
    columns = ~(is_metric & same), ~is_metric, *METRIC, pl.col("variant") != RAW, "variant"
    return measured.sort(*columns).with_row_index("order")


def sort_statistics(frame: pl.DataFrame, order: pl.DataFrame, first: str) -> pl.DataFrame:
    """Sort top-k statistics by the column `first`, then by `order_metrics`, then by portion."""
    named = frame.with_columns(pl.col(*METRIC, "variant").cast(pl.String))
    return named.join(order, on=[*METRIC, "variant"]).sort(first, "order", "portion").drop("order")


def study_statistics(scores: Iterable[pl.DataFrame], order: pl.DataFrame) -> pl.DataFrame:
    """Return kept (`best` or `last`) and the top-k statistics; `scores` come in parts."""
    parts = [
        top_k_statistics(some.with_columns(cost=which), METRIC).select(pl.lit(which).alias("kept"), pl.all())
        for some in scores
        for which in ("best", "last")
    ]
    return sort_statistics(pl.concat(parts), order, "kept")


def distribution(scores: pl.DataFrame) -> pl.DataFrame:
    """Return name, condition, variant, value, share: trials at least as good as value, of all.

    A trial counts by its best validation. A few hundred points of each distribution, close together
    at the good end.
    """
    position, point = pl.col("rank"), (_POINTS * pl.col("rank").log()).floor()
    return (
        rank(scores.with_columns(cost="best"), [*METRIC, "variant"])
        .filter((point < (_POINTS * (position + 1).log()).floor()) | (position == pl.col("trials")))
        .sort(*METRIC, "variant", "rank")
        .select(
            pl.col(*METRIC, "variant").cast(pl.String),
            value=pl.col("sign") * pl.col("cost"),
            share=position / pl.col("trials"),
        )
    )


def mean_last(scores: pl.DataFrame) -> pl.DataFrame:
    """Return name, condition, variant, trials, value: means of trials' last validations."""
    value = pl.col("sign") * pl.col("last")
    keys = (*METRIC, "variant")
    known = scores.select(*keys, value=value).drop_nulls("value")
    return known.group_by(keys).agg(trials=pl.len(), value=pl.col("value").mean()).sort(keys)
