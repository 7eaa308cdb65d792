"""The objective's metric over the generalisation gap of each trial (paper 003, Figures 3 and 5)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import PANEL, arm_colour, figure_style, fit_scale, legend, look, to_svg
from graft.report.sections import FigureNumbers, Part, Section
from graft.report.sections._group_measures import GAP
from search.analysis.study.averaging_grid import CONDITIONS
from search.analysis.study.gaps import AVERAGES, averages_by_gap

_DROPOUT = "model.embedding_dropout"
_FEWEST = 3
"""Gaps that make a curve."""


@final
class GapCurves(Section):
    """Two figures: averages against raw parameters, and raw parameters coloured by the dropout of embeddings.

    For studies whose trials differ in `task.generalisation_gap`, as those of Othello; groups of the set complement have
    figures of their own.
    """

    part = Part.FIGURES
    order = 72
    subject = "trials"
    figures = 2

    @cached_property
    def parameters(self) -> pl.DataFrame:
        """number, gap and, if it is drawn, dropout."""
        found = self.data.parameters(rf"{GAP}|{_DROPOUT}".replace(".", r"\."))
        names = {GAP: "gap", _DROPOUT: "dropout"}
        known = found.rename({path: name for path, name in names.items() if path in found.columns})
        return known.with_columns(pl.col("gap").cast(pl.Float64)) if "gap" in known.columns else pl.DataFrame()

    @cached_property
    def values(self) -> pl.DataFrame:
        """number, gap, kind, value (search.analysis.study.gaps)."""
        metric, condition = self.data.metric, self.data.condition
        plain = self.data.scores.of(metric).filter(pl.col("condition") == condition)
        grid = self.data.scores.of_name(metric, CONDITIONS)
        return averages_by_gap(grid, plain, self.parameters.select("number", "gap").drop_nulls())

    @property
    def applies(self) -> bool:
        if self.parameters.is_empty() or not self.data.groups.is_empty():
            return False
        shown = "dropout" in self.parameters.columns or self.values["kind"].n_unique() > 1
        return shown and self.values["gap"].n_unique() >= _FEWEST

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        metric, own = self.data.metric, figures.own
        caption = (
            f"{metric} by generalisation gap, each trial with its last validation: raw parameters, and of the averages "
            "of one training run the best, the mean of the best ten and the mean of all. The best is chosen by the "
            "values that are shown, which flatters it. Lines join means over trials of like gap, five gaps together."
        )
        if self.values["kind"].n_unique() > 1:
            yield Picture(number=own, caption=caption, svg=_draw_kinds(self.values, metric, own))
            own += 1
        if "dropout" in self.parameters.columns:
            raw = self.values.filter(pl.col("kind") == "raw").join(
                self.parameters.select("number", "dropout").drop_nulls(), on="number"
            )
            caption = f"{metric} of raw parameters by generalisation gap, coloured by the dropout rate of embeddings."
            yield Picture(number=own, caption=caption, svg=_draw_dropout(raw, metric, own))


def _draw_kinds(values: pl.DataFrame, metric: str, number: int) -> str:
    kinds = ["raw", *AVERAGES]
    colours = [look("raw").colour, arm_colour(1), arm_colour(6), arm_colour(3)]
    with figure_style():
        figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.9), layout="constrained")
        axes = figure.subplots()
        for kind, colour in zip(kinds, colours, strict=True):
            own = values.filter(pl.col("kind") == kind)
            axes.plot(own["gap"].to_list(), own["value"].to_list(), ".", color=colour, markersize=4, alpha=0.5)
            means = own.group_by((pl.col("gap") // 5).alias("bin")).agg(pl.col("gap", "value").mean()).sort("gap")
            axes.plot(means["gap"].to_list(), means["value"].to_list(), color=colour, linewidth=1.8)
        _label(axes, metric, values["value"].to_list())
        keys = [
            Line2D([], [], color=colour, linewidth=1.8, label=look(kind).label if kind == "raw" else f"BEMA: {kind}")
            for kind, colour in zip(kinds, colours, strict=True)
        ]
        legend(figure, keys)
        return to_svg(figure, f"figure{number}")


def _draw_dropout(raw: pl.DataFrame, metric: str, number: int) -> str:
    with figure_style():
        figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.6), layout="constrained")
        axes = figure.subplots()
        points = axes.scatter(raw["gap"].to_list(), raw["value"].to_list(), c=raw["dropout"].to_list(), cmap="viridis")
        figure.colorbar(points, ax=axes, label="dropout of embeddings")
        _label(axes, metric, raw["value"].to_list())
        return to_svg(figure, f"figure{number}")


def _label(axes: Axes, metric: str, values: list[float]) -> None:
    axes.set_xlabel("generalisation gap")
    axes.set_ylabel(metric)
    fit_scale(axes, values)
