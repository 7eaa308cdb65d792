"""The Pareto front of a study with two objectives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from graft.report.rendering.document import Block, Paragraph, Picture, Table
from graft.report.rendering.drawing import INK, PANEL, SOFT, arm_colour, figure_style, legend, to_svg
from graft.report.rendering.formatting import number, parameter
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.study.pareto import pareto_front
from search.analysis.study.trials import compare_parameters

_LISTED = 20
_MOST_MARKS = 2000
"""Points beyond which they are an image within the figure."""


@final
class ParetoFront(Section):
    """The trials that no other one beats in both objectives, drawn before the others and listed."""

    part = Part.RESULTS
    after = "best_trials"
    subject = "trials"
    heading = "Pareto front"

    @property
    def applies(self) -> bool:
        return self._second is not None and self.front.height > 0

    @property
    def figure_count(self) -> int:
        return int(self._second is not None)  # no other study leaves out a number for it

    @property
    def _second(self) -> str | None:
        return self.data.study.get("second_objective")

    @cached_property
    def front(self) -> pl.DataFrame:
        """The trials on the front, the best objective first."""
        second = self._second or ""
        maximize = self.data.study["direction"] == "maximize", second.startswith("maximize")
        return pareto_front(self.data.ended, maximize)

    def findings(self) -> Iterable[str]:
        count = self.front.height
        which = f"{number(count)} trials are" if count > 1 else f"Trial {self.front['number'][0]} is"
        yield (
            f"{which} on the Pareto front of {self.data.study['objective']} and {self._labels[1]}: no other feasible "
            "trial is as good in both and better in one."
        )

    @property
    def _labels(self) -> tuple[str, str]:
        return self.data.study["objective"], (self._second or "").partition(" ")[2]

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        study, (first, second) = self.data.study, self._labels
        shown = self.front.head(_LISTED)
        caption = (
            f"The Pareto front: {study['direction']} {first}, {self._second}. The line goes along what is reached: to "
            "be better than it in one objective is to be worse in the other."
        )
        svg = _draw(self.data.trials, self.front, self._labels, figures.own)
        yield Picture(number=figures.own, caption=caption, svg=svg)
        is_shown = pl.col("number").is_in(shown["number"].implode())
        params = self.data.parameters(".*").filter(is_shown)
        settings = shown.select("number").join(params, on="number", how="left", maintain_order="left")
        texts: list[str] = []
        for row in settings.drop("number").iter_rows(named=True):
            given = {path: value for path, value in row.items() if value is not None}
            texts.append(json.dumps(given))
        varying = compare_parameters(pl.Series(texts)).varying
        rows = [
            [first, *map(number, shown["objective"])],
            [second, *map(number, shown["second_objective"])],
            ["steps", *map(number, shown["steps"])],
            *([path, *map(parameter, values)] for path, values in varying.items()),
        ]
        header = ["Trial", *map(str, shown["number"])]
        yield Table(caption="Trials of the front", header=header, rows=rows)
        if (more := self.front.height - shown.height) > 0:
            yield Paragraph(text=f"{number(more)} more have a worse {first} and a better {second}.")


def _draw(trials: pl.DataFrame, front: pl.DataFrame, labels: tuple[str, str], figure_number: int) -> str:
    points = trials.drop_nulls(("objective", "second_objective"))
    broken = pl.col("feasible").not_().fill_null(value=False)
    with figure_style():
        figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.7), layout="constrained")
        axes = figure.subplots()
        is_image = points.height > _MOST_MARKS
        looks: dict[str, Any] = {"alpha": 0.6, "linewidths": 0.8, "rasterized": is_image}
        colour, keys = arm_colour(0), list[Line2D]()
        for label, rows, marker, shade in (
            ("not feasible", points.filter(broken), "x", SOFT),
            ("other trials", points.filter(~broken), "o", SOFT),
        ):
            if rows.is_empty():
                continue
            xs, ys = rows["objective"].to_list(), rows["second_objective"].to_list()
            axes.scatter(xs, ys, s=14, color=shade, marker=marker, label=label, **looks)
            keys.append(Line2D([], [], color=shade, marker=marker, linestyle="none", label=label))
        xs, ys = front["objective"].to_list(), front["second_objective"].to_list()
        axes.step(xs, ys, where="post", color=colour, linewidth=1.2)
        axes.scatter(xs, ys, s=30, color=colour, edgecolors=INK, linewidths=0.6, zorder=3, label="Pareto front")
        keys.append(Line2D([], [], color=colour, marker="o", linewidth=1.2, label="Pareto front"))
        axes.set(xlabel=labels[0], ylabel=labels[1])
        legend(figure, keys)
        return to_svg(figure, f"figure{figure_number}")
