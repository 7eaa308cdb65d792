"""The base of sections that draw panels of lines."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from graft.report.data import StudyData
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import (
    INK,
    PANEL,
    Looks,
    figure_style,
    fit_scale,
    label_decades,
    legend,
    series_keys,
    series_looks,
    to_svg,
)
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.metrics import range_of
from search.analysis.study.condition_lines import order_lines, trace_lines

_PANELS_PER_ROW = 3
_FEW = 6
"""Ticks of an axis of whole numbers."""
_BY = "model.scorer"
"""The parameter whose values are the lines of a study without arms, if its trials differ in it."""


class Lines(Section, ABC):
    """A section that draws panels of lines, in rows of three, with a line for each series.

    By default it draws `metrics` over the numbers of their conditions, with a panel for each number
    and a line for each arm or scorer. A subclass with other lines overrides `read_lines`, one with
    more marks `draw` and `looks`.
    """

    part = Part.FIGURES
    figures = 1

    caption: ClassVar[str] = ""
    """The caption; it and `label` may have {metric} (`mse`), {label} (`mse/raw`), {objective}."""
    metrics: ClassVar[Sequence[str]] = ()
    """The metrics whose lines are drawn; if empty, the objective's."""
    conditions: ClassVar[str] = "="
    """A regular expression of the conditions that lines go over."""
    without: ClassVar[Sequence[str]] = ()
    """Numbers of conditions over which no line goes."""
    most: ClassVar[int] = 6
    """The most panels that are drawn; if there are more, the caption says how many."""
    panels_are: ClassVar[str] = "numbers of conditions"
    """The caption's word for panels."""
    x_label: ClassVar[str] = ""
    """The label of the x axis; if empty, the column `across` of the lines."""
    label: ClassVar[str] = ""
    """The label of the y axis, beside the first panel of each row."""
    label_all: ClassVar[bool] = False
    """True if every panel has the label of the y axis."""
    marks: ClassVar[Mapping[str, Any]] = {"marker": ".", "linewidth": 1.6}
    """Keywords of `Axes.plot` for all lines."""
    scaled: ClassVar[Sequence[str]] = ("x", "mean")
    """Columns that choose linear or logarithmic axes: `x` the x axis, the others the y axis."""
    dashed: ClassVar[str] = ""
    """The legend's name for a dashed line that `draw` adds to each panel."""
    legend_inches: ClassVar[float] = 0
    """Height of the legend, in inches, of a figure of one panel as wide as two; 0 for others."""

    def read_lines(self) -> pl.DataFrame:
        """Return a row for each point: across, title (of its panel), series, x, mean, low and high.

        low and high are there for a band alone; `across` may be missing where the section states
        it, and `title` where there is one panel. Panels and series are drawn in the order of rows.
        """
        metrics, series = self.metrics or (self.data.metric,), read_series(self.data)
        scores = self.data.scores
        return self.trace({name: (scores.of(name, self.conditions), series) for name in metrics})

    def trace(self, parts: Mapping[str, tuple[pl.DataFrame, pl.DataFrame]]) -> pl.DataFrame:
        """Return scores as lines over numbers of conditions (search.analysis.study).

        `parts` maps a name, for the column `part`, to scores and the series of trials. Where the
        name is a metric's that has a range, intervals are cut there.
        """
        frames = [
            trace_lines(scores, series, self.without, range_of(name)).with_columns(part=pl.lit(name))
            for name, (scores, series) in parts.items()
        ]
        if not frames:
            return pl.DataFrame()
        return order_lines(pl.concat(frames), self.data.condition).rename({"rest": "title"})

    @cached_property
    def lines(self) -> pl.DataFrame:
        """The lines of `read_lines`, with all columns."""
        lines = self.read_lines()
        if lines.is_empty():
            return lines
        columns = {"across": self.x_label} if self.x_label else {}
        if "title" not in lines.columns:
            columns["title"] = ""
        return lines.with_columns(pl.lit(text).alias(name) for name, text in columns.items())

    @property
    def applies(self) -> bool:
        return not self.lines.is_empty() and self.lines["x"].n_unique() > 1

    def fill(self, text: str) -> str:
        """Return a caption or a label with the names of the study's objective."""
        objective = str(self.data.study["objective"])
        label = "/".join(objective.split("/")[:2])
        return text.format(metric=self.data.metric, label=label, objective=objective)

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        yield self.picture(figures.own, self.lines, self.caption, self.label)

    def looks(self, lines: pl.DataFrame) -> Looks:
        """Return the looks of the series of a figure: a colour each."""
        return series_looks(lines["series"].unique(maintain_order=True).to_list())

    def keys(self, looks: Looks) -> list[Line2D]:
        """Return the legend."""
        dashed = [Line2D([], [], color=INK, linestyle="--", label=self.dashed)] if self.dashed else []
        return [*series_keys(looks), *dashed]

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        """Draw the lines of one panel."""
        for (name,), line in lines.group_by("series", maintain_order=True):
            look = {**self.marks, **looks[str(name)]}
            axes.plot(line["x"].to_list(), line["mean"].to_list(), **look)
            if "low" in line.columns:
                sure = line.drop_nulls(["low", "high"])
                x, low, high = (sure[column].to_list() for column in ("x", "low", "high"))
                axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)

    def picture(
        self, number: int, lines: pl.DataFrame, caption: str, label: str, most: int = 0, panels_are: str = ""
    ) -> Picture:
        """Return the figure of lines; `most` and `panels_are` stand for the section's own."""
        panels = lines.partition_by("across", "title", maintain_order=True)
        shown = panels[: most or self.most]
        looks = self.looks(pl.concat(shown))
        keys = self.keys(looks)
        rows, columns = math.ceil(len(shown) / _PANELS_PER_ROW), min(len(shown), _PANELS_PER_ROW)
        height = rows * PANEL[1] + 0.3 * math.ceil(len(keys) / 3) + 0.2
        size = (max(columns, 1.7) * PANEL[0], height)
        if self.legend_inches:
            size = (2 * PANEL[0], PANEL[1] + self.legend_inches)
        with figure_style():
            figure = Figure(figsize=size, layout="constrained")
            grid: Any = figure.subplots(rows, columns, squeeze=False)
            for axes, panel in zip(grid.flat, shown, strict=False):
                axes.set_title(panel["title"][0])
                self.draw(axes, panel, looks)
                if "x" in self.scaled:
                    _scale_numbers(axes, panel["x"].to_list())
                if heights := [name for name in self.scaled if name != "x"]:
                    values = (value for name in heights for value in panel[name].drop_nulls().to_list())
                    fit_scale(axes, [*values])
                axes.set_xlabel(panel["across"][0])
                if label and (self.label_all or axes in grid[:, 0]):
                    axes.set_ylabel(self.fill(label))
            for axes in list(grid.flat)[len(shown) :]:
                axes.set_visible(False)
            if len(keys) > 1 or self.legend_inches:
                legend(figure, keys)
            svg = to_svg(figure, f"figure{number}")
        note = say_shown(len(shown), len(panels), panels_are or self.panels_are)
        return Picture(number=number, caption=self.fill(caption) + note, svg=svg)


def read_series(data: StudyData) -> pl.DataFrame:
    """Return number and series: each trial's arm if it stands for one, its scorer, or `all`."""
    if data.experiment:
        return data.experiment.compared.trials.select("number", series="arm")
    parameters = data.parameters(_BY.replace(".", r"\."))
    scorer = pl.col(_BY).cast(pl.String) if _BY in parameters.columns else pl.lit("all")
    return parameters.select("number", series=scorer.fill_null("all"))


def _scale_numbers(axes: Axes, numbers: Sequence[float]) -> None:
    """Make the x axis logarithmic for positive numbers over a factor of twenty; few get ticks."""
    if min(numbers) > 0 and max(numbers) >= 20 * min(numbers):
        axes.set_xscale("log")
        label_decades(axes.xaxis, max(numbers) / min(numbers))
    elif all(value == int(value) for value in numbers):
        ticks = sorted(set(numbers))
        few = len(ticks) <= _FEW
        axes.xaxis.set_major_locator(FixedLocator(ticks) if few else MaxNLocator(_FEW, integer=True))
