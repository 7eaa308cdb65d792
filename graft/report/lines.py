"""Lines over a number of conditions: a panel for each, as several sections draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from graft.report.data import StudyData
from graft.report.rendering.drawing import (
    INK,
    PANEL,
    arm_colour,
    figure_style,
    fit_scale,
    label_decades,
    legend,
    to_svg,
)

_ACROSS = 3
"""Panels side by side."""
_FEW = 6
"""Ticks of an axis of whole numbers."""
_BY = "model.scorer"
"""What parts the lines of a study without arms, if it differs."""


def read_series(data: StudyData) -> pl.DataFrame:
    """Return number, series: each trial's arm if it stands for one, or its scorer; `all` if it has none."""
    if data.experiment:
        return data.experiment.compared.trials.select("number", series="arm")
    found = data.parameters(_BY.replace(".", r"\."))
    scorer = pl.col(_BY).cast(pl.String) if _BY in found.columns else pl.lit("all")
    return found.select("number", series=scorer.fill_null("all"))


def panels_of(frame: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Return the title and the rows of each panel of longest_lines."""
    parts = frame.partition_by("panel", maintain_order=True)
    return [(part["rest"][0], part) for part in parts]


def draw_panels(
    panels: Sequence[tuple[str, pl.DataFrame]],
    draw: Callable[[Axes, pl.DataFrame], None],
    keys: Sequence[Line2D],
    name: str,
    upright: str = "",
) -> str:
    """Return a figure of panels with a title each, in rows of three under one legend.

    `upright`: what the y axes show, where `draw` does not say it; it stands beside the first panel of each row.
    """
    columns = min(len(panels), _ACROSS)
    rows = math.ceil(len(panels) / _ACROSS)
    with figure_style():
        size = (max(columns * PANEL[0], 1.7 * PANEL[0]), rows * PANEL[1] + 0.3 * math.ceil(len(keys) / 3) + 0.2)
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(rows, columns, squeeze=False)
        for axes, (title, frame) in zip(grid.flat, panels, strict=False):
            axes.set_title(title)
            draw(axes, frame)
            if upright and axes in grid[:, 0]:
                axes.set_ylabel(upright)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        if len(keys) > 1:
            legend(figure, keys)
        return to_svg(figure, name)


def draw_beside_answers(
    lines: pl.DataFrame, draw: Callable[[Axes, pl.DataFrame, Sequence[str]], None], name: str
) -> str:
    """Return a figure of longest_lines in which the right answers are dashed; `draw` knows the order of the series."""
    order: list[str] = lines["series"].unique(maintain_order=True).to_list()
    keys = [*series_keys(order), Line2D([], [], color=INK, linestyle="--", label="right answers")]
    return draw_panels(panels_of(lines), lambda axes, frame: draw(axes, frame, order), keys, name)


def draw_series(axes: Axes, frame: pl.DataFrame, order: Sequence[str]) -> None:
    """Draw a line for each series over x, with its interval as a band."""
    for name, own in frame.group_by("series", maintain_order=True):
        draw_line(axes, own, arm_colour(order.index(str(name[0]))))
    scale_numbers(axes, frame["x"].to_list())
    fit_scale(axes, frame["mean"].to_list())
    axes.set_xlabel(frame["across"][0])


def draw_line(axes: Axes, own: pl.DataFrame, colour: str, *, style: str = "-") -> None:
    """x, mean, low and high of one line."""
    axes.plot(own["x"].to_list(), own["mean"].to_list(), style, color=colour, marker=".", linewidth=1.6)
    sure = own.drop_nulls(["low", "high"])
    x, low, high = (sure[name].to_list() for name in ("x", "low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def scale_numbers(axes: Axes, numbers: Sequence[float]) -> None:
    """Make the x axis logarithmic for positive numbers over a factor of twenty; whole ticks if few."""
    if min(numbers) > 0 and max(numbers) >= 20 * min(numbers):
        axes.set_xscale("log")
        label_decades(axes.xaxis, max(numbers) / min(numbers))
    elif all(value == int(value) for value in numbers):
        few = len(set(numbers)) <= _FEW
        axes.xaxis.set_major_locator(FixedLocator(sorted(set(numbers))) if few else MaxNLocator(_FEW, integer=True))


def series_keys(order: Sequence[str]) -> list[Line2D]:
    """Return the legend of series."""
    return [Line2D([], [], color=arm_colour(place), linewidth=1.8, label=name) for place, name in enumerate(order)]
