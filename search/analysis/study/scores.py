"""The metrics of trials that ended, as scores that can be ranked: each trial's best and its last validation.

Legend: a *score* is one metric of one trial under one condition and variant; its *cost* is the metric turned so that
less is better, sign * metric.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from search.analysis.study.top_k import RAW, rank, top_k_statistics

METRIC = ("name", "condition")
"""The columns that identify a metric; each has its variants."""

_POINTS = 30
"""Points of a distribution for each factor of e in the rank."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Metrics that one part of a report keeps to itself, so that no other table ranks them."""

    names: Collection[str] = ()
    """The first words of their names."""
    conditions: str | None = None
    """A regular expression of their conditions; its first group is the condition without what is claimed of it."""

    @property
    def rows(self) -> pl.Expr:
        """Whether a row of metrics is claimed."""
        ways = [pl.lit(False)]
        if self.names:
            ways.append(pl.col("name").str.split(" ").list.first().is_in(list(self.names)))
        if self.conditions is not None:
            ways.append(pl.col("condition").str.contains(self.conditions))
        return pl.any_horizontal(ways)

    def rest_of(self, condition: str) -> str:
        """A condition without what is claimed of it."""
        if self.conditions is None:
            return condition
        text = pl.lit(condition).str
        claimed, rest = pl.select(text.contains(self.conditions), rest=text.extract(self.conditions, 1)).row(0)
        return (rest or "") if claimed else condition


def score(metrics: pl.DataFrame, ended: pl.DataFrame, metric: str, direction: str) -> pl.DataFrame:
    """number, group_number, name, condition, variant, sign, best and last, both costs: one row for each score.

    `metrics` come in the order of steps. More of `metric`, the objective's, is better if the study maximizes it; of
    another one, if its name says accuracy.
    """
    own = pl.lit(direction == "maximize")
    more_is_better = pl.when(pl.col("name") == metric).then(own).otherwise(pl.col("name").str.contains("accuracy"))
    value, sign = pl.col("value"), pl.col("sign")
    return (
        metrics.lazy()
        .group_by("number", *METRIC, "variant")
        .agg(lowest=value.min(), highest=value.max(), last=value.last())
        .join(ended.lazy().select("number", "group_number"), on="number")
        .with_columns(sign=pl.when(more_is_better).then(-1).otherwise(1))
        .select(
            "number",
            "group_number",
            *METRIC,
            "variant",
            "sign",
            best=pl.when(sign < 0).then(-pl.col("highest")).otherwise("lowest"),
            last=sign * pl.col("last"),
        )
        .collect()
    )


def order_metrics(scores: pl.DataFrame, metric: str, condition: str) -> pl.DataFrame:
    """name, condition, variant, order: the rank of each metric and variant in every table.

    The objective's metric and condition come first, then its other conditions, then other metrics; of each, raw first.
    """
    own, same = pl.col("name") == metric, pl.col("condition") == condition
    found = scores.lazy().select(*METRIC, "variant").unique()
    return (
        found.sort(~(own & same), ~own, *METRIC, pl.col("variant") != RAW, "variant").with_row_index("order").collect()
    )


def sort_statistics(frame: pl.DataFrame, order: pl.DataFrame, first: str) -> pl.DataFrame:
    """Top-k statistics by a column, then as `order_metrics` says, then from small portions to large ones."""
    return frame.join(order, on=[*METRIC, "variant"]).sort(first, "order", "portion").drop("order")


def study_statistics(scores: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """The top-k statistics of all trials: kept (`best` or `last`: validation), name, condition and those of top_k."""
    kept = [
        top_k_statistics(scores.with_columns(cost=which), METRIC).select(pl.lit(which).alias("kept"), pl.all())
        for which in ("best", "last")
    ]
    return sort_statistics(pl.concat(kept), order, "kept")


def distribution(scores: pl.DataFrame) -> pl.DataFrame:
    """name, condition, variant, value, share: the share of trials at least as good as value at their best.

    A few hundred points of each distribution, close together at the good end.
    """
    position, point = pl.col("rank"), (_POINTS * pl.col("rank").log()).floor()
    return (
        rank(scores.with_columns(cost="best"), [*METRIC, "variant"])
        .filter((point < (_POINTS * (position + 1).log()).floor()) | (position == pl.col("trials")))
        .sort(*METRIC, "variant", "rank")
        .select(*METRIC, "variant", value=pl.col("sign") * pl.col("cost"), share=position / pl.col("trials"))
    )


def mean_last(metrics: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """name, condition, variant, trials, value: the mean over trials that ended of their last validations."""
    own = metrics.join(ended.select("number"), on="number", how="semi")
    last = own.group_by("number", *METRIC, "variant").agg(pl.col("value").last()).drop_nulls("value")
    means = last.group_by(*METRIC, "variant").agg(trials=pl.len(), value=pl.col("value").mean())
    return means.sort(*METRIC, "variant")
