"""What a study found, in numbers: its best trials, averaged against raw parameters, its groups, its dropout rates."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

import polars as pl

from search.analysis.dropout import DropoutSummary, summarise_dropout
from search.analysis.evaluations import both_ways
from search.analysis.maps import maps
from search.analysis.powers import compare, rest_of, split
from search.analysis.tails import RAW, median_interval, ranked, tails
from spaces.records import Scalar, State

GAP = "task.generalisation_gap"
"""The parameter that says how much longer than trained a task's validation is."""

_METRIC = ("name", "condition")
_POINTS = 30
"""Points of a curve for each factor of e in the rank."""


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """Everything that a study's report shows. Only finished and pruned trials are counted, except in `counts`.

    The columns of tails are trials, portion, counted, value, margin, raw, change, change_margin (see `tails`).
    Rows come with the objective's metric and condition first, then its other conditions; raw before its averages.
    """

    name: str
    objective: str
    """metric/variant or metric/variant/condition."""
    direction: str
    state: str
    planned: int
    created_at: datetime | None
    counts: Mapping[State, int]
    """Trials in each state that occurs, in the order of a trial's life."""
    lane_steps: int
    """Training steps that lanes of packs made."""
    lane_room: int
    """What they would have been with no lane free; 0 where it is not known."""
    best: pl.DataFrame
    """The best trials, best first: number, group_number, state, steps, objective."""
    varying: Mapping[str, tuple[Scalar | None, ...]]
    """Parameter -> its value in each of the best trials; None where a trial does not have it."""
    shared: Mapping[str, Scalar]
    """Parameters of one value in all the best trials."""
    statistics: pl.DataFrame
    """kept (`best` or `last` validation of a trial), name, condition, variant, sign, and the columns of tails."""
    curves: pl.DataFrame
    """name, condition, variant, value, share: the share of trials at least as good as value at their best."""
    groups: pl.DataFrame
    """group_number, trials, gap, the integers of a group's task and model by their path, width_multiplier d / (v - 1),
    value_coefficient (d_v - v + 1) / (d - v + 1); no rows unless groups have two trials on average. Null: unknown."""
    group_statistics: pl.DataFrame
    """group_number, gap, name, condition, variant, sign, and the columns of tails, of each trial's best validation."""
    across_groups: pl.DataFrame
    """name, condition, variant, portion, groups, better, median, low, high: the changes against raw over groups."""
    gap_trend: pl.DataFrame
    """name, condition, variant, portion, gap, groups, median, low, high: values over groups of like gap."""
    dropout: DropoutSummary
    diagnostics: pl.DataFrame
    """name, condition, variant, trials, value: means of the last validations of what is neither good nor bad."""
    maps: pl.DataFrame
    """Of the objective's metric over conditions of two numbers (search.analysis.maps)."""
    both_ways: pl.DataFrame
    """Of weights that were also validated with the scorer of training (see `evaluations`)."""
    powers: pl.DataFrame
    """kappa, eta, trials, value, raw, change, margin of the objective's metric (see `powers`); no rows: no grid."""


def summarise(
    study: Mapping[str, Any],
    trials: pl.DataFrame,
    metrics: pl.DataFrame,
    top: int = 10,
    lanes: tuple[int, int] = (0, 0),
    diagnostics: Collection[str] = (),
) -> StudySummary:
    """The summary of one study.

    `study` is its row, `trials` and `metrics` its frames as `storage.frames` gives them: metrics in the order of steps.
    Of `config` only that of each group's first trial that has one is read; the others may be null. `top`: best trials.
    `lanes`: the lane-steps made, and those that there was room for. `diagnostics`: first words of the names of metrics
    of which more is no better than less.
    """
    metric, *rest = str(study["objective"]).split("/", 2)
    condition = rest[1] if len(rest) > 1 else ""
    ended = trials.filter(pl.col("objective").is_not_null())
    told = pl.col("name").str.split(" ").list.first().is_in(list(diagnostics))
    every = split(_scores(metrics.filter(~told), ended, metric, study["direction"]))
    scores, condition = every.plain, rest_of(condition)
    order = _order(scores, metric, condition)
    groups = _groups(ended)
    best = ended.sort("objective", "number", descending=[study["direction"] == "maximize", False]).head(top)
    group_statistics = _group_statistics(scores, groups, order)
    varying, shared = _parameters(best["params"])
    return StudySummary(
        name=study["name"],
        objective=study["objective"],
        direction=study["direction"],
        state=study["state"],
        planned=study["trials"],
        created_at=study["created_at"],
        counts=_counts(trials),
        lane_steps=lanes[0],
        lane_room=lanes[1],
        best=best.select("number", "group_number", "state", "steps", "objective"),
        varying=varying,
        shared=shared,
        statistics=_statistics(scores, order),
        curves=_curves(scores),
        groups=groups,
        group_statistics=group_statistics,
        across_groups=_across_groups(group_statistics),
        gap_trend=_gap_trend(group_statistics),
        dropout=summarise_dropout(
            ended.select("number", "group_number", "params"),
            scores.filter((pl.col("name") == metric) & (pl.col("condition") == condition)),
            groups,
        ),
        diagnostics=_means_of_last(metrics.filter(told), ended),
        maps=maps(scores, ended, metric),
        both_ways=both_ways(scores),
        powers=compare(every, metric, condition),
    )


def _counts(trials: pl.DataFrame) -> dict[State, int]:
    counted = dict(trials["state"].value_counts().iter_rows())
    return {state: counted[state] for state in get_args(State) if state in counted}


def _scores(metrics: pl.DataFrame, ended: pl.DataFrame, metric: str, direction: str) -> pl.DataFrame:
    """number, group_number, name, condition, variant, sign, best, last; the last two are costs.

    More of the objective's metric is better if the study maximises it; of another, if its name says accuracy.
    """
    own = pl.lit(direction == "maximize")
    more_is_better = pl.when(pl.col("name") == metric).then(own).otherwise(pl.col("name").str.contains("accuracy"))
    value, sign = pl.col("value"), pl.col("sign")
    return (
        metrics.lazy()
        .group_by("number", *_METRIC, "variant")
        .agg(lowest=value.min(), highest=value.max(), last=value.last())
        .join(ended.lazy().select("number", "group_number"), on="number")
        .with_columns(sign=pl.when(more_is_better).then(-1).otherwise(1))
        .select(
            "number",
            "group_number",
            *_METRIC,
            "variant",
            "sign",
            best=pl.when(sign < 0).then(-pl.col("highest")).otherwise("lowest"),
            last=sign * pl.col("last"),
        )
        .collect()
    )


def _means_of_last(metrics: pl.DataFrame, ended: pl.DataFrame) -> pl.DataFrame:
    """Of metrics outside grids of averages."""
    plain = split(metrics.join(ended.select("number"), on="number", how="semi")).plain
    last = plain.group_by("number", *_METRIC, "variant").agg(pl.col("value").last()).drop_nulls("value")
    return (
        last.group_by(*_METRIC, "variant").agg(trials=pl.len(), value=pl.col("value").mean()).sort(*_METRIC, "variant")
    )


def _order(scores: pl.DataFrame, metric: str, condition: str) -> pl.DataFrame:
    """The place of each metric and variant in every table: name, condition, variant, order."""
    own, judged = pl.col("name") == metric, pl.col("condition") == condition
    found = scores.lazy().select(*_METRIC, "variant").unique()
    return (
        found.sort(~(own & judged), ~own, *_METRIC, pl.col("variant") != RAW, "variant")
        .with_row_index("order")
        .collect()
    )


def _statistics(scores: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    kept = [
        tails(scores.with_columns(cost=which), _METRIC).select(pl.lit(which).alias("kept"), pl.all())
        for which in ("best", "last")
    ]
    return _in_order(pl.concat(kept), order, "kept")


def _in_order(frame: pl.DataFrame, order: pl.DataFrame, first: str) -> pl.DataFrame:
    """Rows in the order of a column, then of metrics and variants, then from small portions to large ones."""
    return frame.join(order, on=[*_METRIC, "variant"]).sort(first, "order", "portion").drop("order")


def _curves(scores: pl.DataFrame) -> pl.DataFrame:
    """A few hundred points of each distribution, close together at the good end."""
    rank, place = pl.col("rank"), (_POINTS * pl.col("rank").log()).floor()
    return (
        ranked(scores.with_columns(cost="best"), [*_METRIC, "variant"])
        .filter((place < (_POINTS * (rank + 1).log()).floor()) | (rank == pl.col("trials")))
        .sort(*_METRIC, "variant", "rank")
        .select(*_METRIC, "variant", value=pl.col("sign") * pl.col("cost"), share=rank / pl.col("trials"))
    )


def _parameters(params: pl.Series) -> tuple[dict[str, tuple[Scalar | None, ...]], dict[str, Scalar]]:
    """Parameters that differ between the best trials, and those that do not (of a single trial, all differ)."""
    decoded: list[dict[str, Scalar]] = [json.loads(text) for text in params]
    paths = dict.fromkeys(path for each in decoded for path in each)
    rows = {path: tuple(each.get(path) for each in decoded) for path in paths}
    shared = {path: values[0] for path, values in rows.items() if len(values) > 1 and len(set(values)) == 1}
    known = {path: value for path, value in shared.items() if value is not None}
    return {path: values for path, values in rows.items() if path not in known}, known


def _groups(ended: pl.DataFrame) -> pl.DataFrame:
    """One row per group with its sizes; no rows where a group is a trial rather than an ensemble."""
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
    sizes = pl.DataFrame(
        [_sizes(json.loads(text) if text else {}) for text in firsts["config"]], infer_schema_length=None
    )
    gap = pl.col("params").str.json_decode(pl.Struct({GAP: pl.Float64})).struct.field(GAP)
    groups = firsts.select("group_number", "trials", gap=gap)
    return _extra_dimensions(groups.hstack(sizes) if sizes.width else groups)


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{section}.{field}": value
        for section in ("task", "model")
        for field, value in config.get(section, {}).items()
        if type(value) is int  # not bool
    }


def _extra_dimensions(groups: pl.DataFrame) -> pl.DataFrame:
    """Room beyond the v - 1 dimensions that the set complement needs (paper 003, 5.5)."""
    needed = ("task.vocabulary", "model.width", "model.value_width")
    if not set(needed) <= set(groups.columns):
        nothing = pl.lit(None, pl.Float64)
        return groups.with_columns(width_multiplier=nothing, value_coefficient=nothing)
    least, width, value_width = pl.col(needed[0]) - 1, pl.col(needed[1]), pl.col(needed[2])
    coefficient = pl.when(width == least).then(0.0).otherwise((value_width - least) / (width - least))
    return groups.with_columns(width_multiplier=width / least, value_coefficient=coefficient)


def _group_statistics(scores: pl.DataFrame, groups: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    gaps = groups.select("group_number", "gap")
    found = tails(
        scores.join(gaps, on="group_number", how="semi").with_columns(cost="best"), ["group_number", *_METRIC]
    )
    placed = found.join(gaps, on="group_number").select("group_number", "gap", pl.exclude("group_number", "gap"))
    return _in_order(placed, order, "group_number")


def _across_groups(statistics: pl.DataFrame) -> pl.DataFrame:
    better = pl.col("sign") * (pl.col("value") - pl.col("raw")) < 0
    return (
        statistics.filter(pl.col("change").is_not_null())
        .group_by(*_METRIC, "variant", "portion", maintain_order=True)
        .agg(groups=pl.len(), better=better.sum(), **median_interval("change"))
    )


def _gap_trend(statistics: pl.DataFrame) -> pl.DataFrame:
    """Medians over the groups of gap 0, 1-2, 3-6, 7-14, ...: Table 1 of paper 003 draws as many of each."""
    doublings = (pl.col("gap") + 1).log(2)
    return (
        statistics.filter(pl.col("gap").is_not_null())
        .group_by(*_METRIC, "variant", "portion", doublings.floor().alias("bin"), maintain_order=True)
        .agg(gap=2 ** doublings.mean() - 1, groups=pl.len(), **median_interval("value"))
        .sort("bin", maintain_order=True)
        .drop("bin")
    )
