"""The arms of experiments for a page: sentences, their table, effects, curves and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from graft.report.arms import read_comparison
from graft.report.rendering.formatting import MISSING
from graft.web.charts.specs import Chart, Line, draw_curves, draw_effects, draw_pairs
from search.analysis.arms.experiment import read_arms
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class ArmsView:
    """Arms against a baseline, as a page shows them."""

    arms: list[str]
    baseline: str
    sentences: list[str]
    """The report's sentences on each arm under the objective's condition."""
    rows: list[dict[str, Any]]
    """Rows of ArmComparison.table, with the name `shown` of each condition."""
    effects: list[tuple[str, Chart]]
    """Condition -> the difference of each arm from the baseline under it."""
    curves: Chart | None
    """The mean of each arm's seeds at each validation, with its interval."""
    pairs: Chart | None
    """Each seed of an arm beside the same seed of the baseline, under the objective's condition."""


def view_arms(reader: Reader, studies: Sequence[str], baseline: str | None = None) -> ArmsView:
    """Return the arms of studies; StudyError for a baseline that is no arm or has no result yet."""
    comparison = read_comparison(reader, studies, baseline)
    experiment = comparison.data.require_experiment()
    lines = [
        Line(str(arm), *(curve[name].to_list() for name in ("step", "mean", "low", "high")))
        for (arm,), curve in experiment.curves.group_by("arm", maintain_order=True)
    ]
    compared, label = experiment.comparison, experiment.label
    table = compared.table.with_columns(shown=pl.col("condition").replace("", "validation"))
    chosen = compared.baseline
    effects: list[tuple[str, Chart]] = []
    for (condition,), rows in table.group_by("shown", maintain_order=True):
        differences = rows.filter(pl.col("arm") != chosen).drop_nulls("difference")
        verdict = pl.col("verdict").fill_null(MISSING)
        ends = ("difference", "difference_low", "difference_high")
        shown = differences.select("arm", *ends, verdict)
        title = f"difference of each arm from {chosen}, {condition}, with 95 % intervals"
        # None where no two arms have seeds in common.
        if chart := draw_effects(shown, f"{label}, minus {chosen}", title):
            effects.append((str(condition), chart))
    pairs = compared.pairs.filter(condition=experiment.condition).drop_nulls("difference")
    return ArmsView(
        arms=read_arms(comparison.data.trials)["arm"].unique(maintain_order=True).to_list(),
        baseline=chosen,
        sentences=comparison.sentences(),
        rows=table.to_dicts(),
        effects=effects,
        curves=draw_curves(lines, ("step", label), "mean of each arm's seeds") if lines else None,
        pairs=draw_pairs(pairs, chosen, label) if pairs.height else None,
    )
