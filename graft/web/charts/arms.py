"""The arms of an experiment for a page: what is told of each in a sentence, their table, and their curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from graft.report.rendering.formatting import MISSING, number, with_interval
from graft.report.sections.arms import Arms
from graft.report.study import read
from graft.web.charts.specs import Chart, Effect, Line, draw_curves, draw_effects
from search.analysis.arms.experiment import read_arms
from spaces.errors import StudyError
from spaces.experiment import ARM
from spaces.messages import no_such
from storage.frames import Reader
from storage.frames.study import StudyReader


@dataclass(frozen=True, kw_only=True)
class ArmsView:
    """Arms against a baseline, as a page shows them."""

    arms: list[str]
    baseline: str
    sentences: list[str]
    """What the report says of each arm under the objective's condition."""
    rows: list[Mapping[str, Any]]
    """condition, arm, seeds, mean, difference, verdict and q, as texts."""
    effects: Chart | None
    """The difference of each arm from the baseline under each condition."""
    curves: Chart | None
    """The mean of each arm's seeds at each validation, with its interval."""


def has_arms(study: StudyReader) -> bool:
    """Return whether the study is an experiment, by its first trial."""
    first = study.trials(sort="number", top=1, columns=("params",))["params"]
    return bool(first.str.json_path_match(f'$["{ARM}"]').count())


def view_arms(reader: Reader, study: str, baseline: str | None = None) -> ArmsView | None:
    """Return the arms of a study; None where the baseline has no result yet.

    Raises StudyError for a baseline that is no arm of it.
    """
    data = replace(read(reader, study), baseline=baseline)
    arms: list[str] = read_arms(data.trials)["arm"].unique(maintain_order=True).to_list()
    if baseline is not None and baseline not in arms:
        raise StudyError(f"baseline: {no_such('arm', baseline, arms)}")
    experiment = data.experiment
    if experiment is None:
        return None
    lines = [
        Line(str(arm), *(own[name].to_list() for name in ("step", "mean", "low", "high")))
        for (arm,), own in experiment.curves.group_by("arm", maintain_order=True)
    ]
    table = experiment.comparison.table.with_columns(pl.col("condition").replace("", "validation"))
    return ArmsView(
        arms=arms,
        baseline=experiment.comparison.baseline,
        sentences=list(Arms(data=data).findings()),
        rows=[_write_row(row) for row in table.iter_rows(named=True)],
        effects=_draw_effects(table, experiment.comparison.baseline, experiment.label),
        curves=draw_curves(lines, ("step", experiment.label), "mean of each arm's seeds") if lines else None,
    )


def _draw_effects(table: pl.DataFrame, baseline: str, label: str) -> Chart | None:
    """Return the differences of a comparison's table; None where no two arms have seeds in common."""
    several = table["condition"].n_unique() > 1
    effects = [
        Effect(
            f"{row['arm']}, {row['condition']}" if several else row["arm"],
            row["difference"],
            row["difference_low"],
            row["difference_high"],
            row["verdict"] or MISSING,
        )
        for row in table.filter(pl.col("arm") != baseline).drop_nulls("difference").iter_rows(named=True)
    ]
    title = f"difference of each arm from {baseline}, with 95 % intervals"
    return draw_effects(effects, f"{label}, minus {baseline}", title) if effects else None


def _write_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "condition": row["condition"],
        "arm": row["arm"],
        "seeds": number(row["finished"]),
        "mean": with_interval(row["mean"], row["low"], row["high"]),
        "difference": with_interval(row["difference"], row["difference_low"], row["difference_high"]),
        "verdict": row["verdict"] or MISSING,
        "q": number(row["q"]),
    }
