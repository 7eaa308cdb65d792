"""The charts of a study's page, of a sample of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from graft.report.nonlinearities.learned import Panel, gelu
from graft.stored.params import PARAMS_PREFIX
from graft.stored.trials import read_front
from graft.web.charts.ranges import Ranges
from graft.web.charts.sampling import numeric_params, word_params
from graft.web.charts.specs import (
    Chart,
    Line,
    draw_curves,
    draw_front,
    draw_history,
    draw_parallel,
    draw_slice,
    write_frame,
)
from spaces.settings import MetricName
from storage.frames.study import StudyReader

SHOWN = 7
"""Learned non-linearities of one task that are drawn: the best."""
_GELU_STEPS = 400
_LINES = 400
"""Trials of parallel coordinates: the best."""


@dataclass(frozen=True, kw_only=True)
class StudyCharts:
    """The charts of a sample of a study's trials."""

    study: StudyReader
    trials: pl.DataFrame
    """The trials of a `Sample`, the best objective first."""
    paths: Sequence[str]
    """The values that have axes."""
    ranges: Ranges
    kept: pl.Series
    """True for the trials in the ranges."""

    def frames(self) -> dict[str, Any]:
        """Return the trials in the ranges and the others, which several charts show."""
        shown = self.trials.select("number", "objective", *self._columns)
        kept, others = (write_frame(shown.filter(mask)) for mask in (self.kept, ~self.kept))
        return {"kept": kept, "others": others}

    def history(self) -> Chart:
        """Return the objective of each trial, and the best so far."""
        best = best_so_far(self.study, self.trials.sort("number"))
        labels = ("trial", self._objective)
        return draw_history(self.trials, best, labels, "objective of trials", self._link)

    def curves(self, numbers: Sequence[int]) -> tuple[Chart | None, list[int]]:
        """Return the objective's metric of these trials by step, and the trials that have any."""
        metric = MetricName.of(self._objective)
        lines: list[Line] = []
        shown: list[int] = []
        for number in numbers:
            points = self.study.metrics([metric.name], range(number, number + 1)).drop_nulls("value")
            points = points.filter(variant=metric.variant, condition=metric.condition)
            if points.height:
                values = (points[name].to_list() for name in ("step", "value"))
                lines.append(Line(f"trial {number}", *values))
                shown.append(number)
        if not lines:
            return None, shown
        # The page names them beside the chart, with links to the trials.
        return draw_curves(lines, ("step", self._objective), "learning curves", legend=False), shown

    def parallel(self) -> Chart | None:
        """Return the values of the best trials, with the objective as the last axis."""
        trials = self.trials.with_columns(kept=self.kept).head(_LINES)
        if not self._columns or trials.height < 2:
            return None
        columns = [*self._columns, "objective"]
        words = word_params(self.trials)
        return draw_parallel(trials, columns, words, self.ranges.bounds, self._link)

    def slices(self) -> list[tuple[str, Chart]]:
        """Return each value against the objective."""
        words, charts = word_params(self.trials), list[tuple[str, Chart]]()
        for column in self._columns:
            texts = words.get(column, ())
            chart = draw_slice(self.trials, column, self._objective, self._link, texts)
            charts.append((column.removeprefix(PARAMS_PREFIX), chart))
        return charts

    def front(self) -> Chart | None:
        """Return both objectives of each trial, and their Pareto front; None for a study of one."""
        second = self.study.row["second_objective"]
        if not second:
            return None
        labels = (self._objective, str(second).partition(" ")[2])
        front = read_front(self.study)
        return draw_front(self.trials, front, labels, self._link) if front.height else None

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of the values that have axes and can be drawn."""
        drawn = {*numeric_params(self.trials), *word_params(self.trials)}
        return [name for path in self.paths if (name := PARAMS_PREFIX + path) in drawn]

    @property
    def _objective(self) -> str:
        return str(self.study.row["objective"])

    @property
    def _link(self) -> str:
        return f"/studies/{self.study.row['name']}/trials/"


def best_so_far(stored: StudyReader, trials: pl.DataFrame) -> Line:
    """Return the best objective of the trials, by number, up to each of them."""
    objective = pl.col("objective")
    best = objective.cum_min() if stored.row["direction"] == "minimize" else objective.cum_max()
    values = trials.select(best).to_series().to_list()
    return Line("best so far", trials["number"].to_list(), values)


def draw_learned(panel: Panel) -> Chart:
    """Return the best non-linearities of one task and component, and GELU."""
    shown = panel.members[:SHOWN]
    lines = [Line(f"trial {member.number}", member.positions, member.knots) for member in shown]
    first, last = min(member.low for member in shown), max(member.high for member in shown)
    inputs = [first + (last - first) * step / _GELU_STEPS for step in range(_GELU_STEPS + 1)]
    # GELU grows with the input: drawn whole, it would leave a flat line of what was learned.
    low, high = (pick(pick(member.knots) for member in shown) for pick in (min, max))
    room = max(high - low, 1.0) / 4
    beside = [x for x in inputs if low - room <= gelu(x) <= high + room]
    lines.append(Line("GELU", beside, list(map(gelu, beside))))
    return draw_curves(lines, ("input", "output"), f"non-linearities learned on {panel.title}")
