"""The charts of a study's page, of a sample of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from graft.report.nonlinearities.learned import Panel, gelu
from graft.stored.trials import PARAMS_PREFIX, read_front
from graft.web.charts.axes import Axis
from graft.web.charts.lines import Line, Point, draw_cloud, draw_curves, draw_points
from graft.web.charts.parallel import Column, Row, draw_parallel
from graft.web.charts.ranges import Ranges
from graft.web.charts.sampling import numeric_params, word_params
from storage.frames.study import StudyReader

SHOWN = 7
"""Learned non-linearities of one task that are drawn: the best."""
_GELU_STEPS = 400
_LINES = 400
"""Trials of parallel coordinates: the best."""


@dataclass(frozen=True, kw_only=True)
class StudyCharts:
    """Draws what a sample of a study shows."""

    study: StudyReader
    trials: pl.DataFrame
    """As `Sample.trials`, the best objective first."""
    paths: Sequence[str]
    """The values that have axes."""
    ranges: Ranges
    kept: pl.Series
    """Which of the trials are in the ranges."""

    def history(self) -> Markup:
        """Return the objective of each trial, and the best so far."""
        points = [
            Point(number, objective, f"trial {number}: {objective:.6g}", self._address(number), is_kept)
            for (number, objective), is_kept in zip(
                self.trials.select("number", "objective").iter_rows(), self.kept, strict=True
            )
        ]
        steps = best_so_far(self.study, self.trials.sort("number")).as_steps()
        return draw_points(points, [steps], ("trial", self._objective), "objective of trials")

    def curves(self, numbers: Sequence[int]) -> tuple[Markup | None, list[int]]:
        """Return the objective's metric of these trials over the steps, and which of them have any."""
        metric, variant, *condition = self._objective.split("/", 2)
        lines: list[Line] = []
        shown: list[int] = []
        for number in numbers:
            found = self.study.metrics([metric], range(number, number + 1)).drop_nulls("value")
            found = found.filter(variant=variant, condition=condition[0] if condition else "")
            if found.height:
                lines.append(Line(f"trial {number}", found["step"].to_list(), found["value"].to_list()))
                shown.append(number)
        return draw_curves(lines, ("step", self._objective), "learning curves") if lines else None, shown

    def parallel(self) -> Markup | None:
        """Return the values of the best trials, with the objective as the last axis."""
        trials = self.trials.with_columns(kept=self.kept).head(_LINES)
        names = [PARAMS_PREFIX + path for path in self.paths]
        numeric, words = set(numeric_params(trials)), word_params(trials)
        columns = [name for name in names if name in numeric or name in words]
        whole = trials.select(*columns, "objective", "number", "kept")
        if not columns or whole.height < 2:
            return None
        for name in set(columns) & set(words):
            places = {word: float(place) for place, word in enumerate(words[name])}
            whole = whole.with_columns(pl.col(name).replace_strict(places, return_dtype=pl.Float64))
        rows = [
            Row(values, 5 * place // whole.height, f"trial {number}: {values[-1]:.6g}", kept)
            for place, (*values, number, kept) in enumerate(whole.iter_rows())
        ]
        axes = [
            Column(
                path := name.removeprefix(PARAMS_PREFIX),
                Axis.of_words(words[name]) if name in words else Axis.over(whole[name].drop_nulls()),
                self.ranges.bounds.get(path),
            )
            for name in (*columns, "objective")
        ]
        return draw_parallel(axes, rows, "values of trials, and their objectives")

    def slices(self) -> list[tuple[str, Markup]]:
        """Return each value against the objective."""
        trials = self.trials.with_columns(kept=self.kept)
        numeric, words = set(numeric_params(trials)), word_params(trials)
        found: list[tuple[str, Markup]] = []
        for path in self.paths:
            name = PARAMS_PREFIX + path
            if name not in numeric and name not in words:
                continue
            known = trials.select(name, "objective", "kept").drop_nulls()
            axis = Axis.of_words(words[name]) if name in words else Axis.over(known[name])
            points = [
                Point(axis.words.index(value) if axis.words else float(value), objective, "", "", kept)
                for value, objective, kept in known.iter_rows()
            ]
            inside, others = ([one for one in points if one.is_kept is kept] for kept in (True, False))
            title = f"{path} against {self._objective}"
            found.append((path, draw_cloud(inside, others, axis, (path, self._objective), title)))
        return found

    def front(self) -> Markup | None:
        """Return both objectives of each trial, and their Pareto front; None for a study of one."""
        second = self.study.row["second_objective"]
        if not second:
            return None
        label = str(second).partition(" ")[2]
        front = read_front(self.study)
        shown = pl.concat(
            [self.trials.select(front.columns).with_columns(kept=self.kept), front.with_columns(kept=True)]
        )
        points = [
            Point(one, other, f"trial {number}: {one:.6g}, {other:.6g}", self._address(number), kept)
            for number, one, other, kept in shown.drop_nulls().unique("number", keep="first").iter_rows()
        ]
        steps = Line("Pareto front", front["objective"].to_list(), front["second_objective"].to_list()).as_steps()
        labels = (self._objective, label)
        return draw_points(points, [steps], labels, "both objectives of trials", x_may_be_log=True) if points else None

    @property
    def _objective(self) -> str:
        return str(self.study.row["objective"])

    def _address(self, number: int) -> str:
        return f"/studies/{self.study.row['name']}/trials/{number}"


def best_so_far(stored: StudyReader, trials: pl.DataFrame) -> Line:
    """Return the best objective of the trials, by number, up to each of them."""
    best = pl.col("objective").cum_min() if stored.row["direction"] == "minimize" else pl.col("objective").cum_max()
    return Line("best so far", trials["number"].to_list(), trials.select(best).to_series().to_list())


def draw_learned(panel: Panel) -> Markup:
    """Return the best non-linearities of one task and component, and GELU."""
    shown = panel.members[:SHOWN]
    lines = [Line(f"trial {one.number}", one.positions, one.knots) for one in shown]
    first, last = min(one.low for one in shown), max(one.high for one in shown)
    inputs = [first + (last - first) * step / _GELU_STEPS for step in range(_GELU_STEPS + 1)]
    # GELU is the input where that is large: drawn whole, it would leave a flat line of what was learned.
    low, high = (pick(pick(one.knots) for one in shown) for pick in (min, max))
    room = max(high - low, 1.0) / 4
    beside = [x for x in inputs if low - room <= gelu(x) <= high + room]
    lines.append(Line("GELU", beside, list(map(gelu, beside))))
    return draw_curves(lines, ("input", "output"), f"non-linearities learned on {panel.title}")
