"""The objective's metric over the generalisation gap of each trial (paper 003, Figures 3 and 5)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import PANEL, Looks, arm_colour, figure_style, fit_scale, look, to_svg
from graft.report.sections import FigureNumbers
from graft.report.sections._group_measures import GAP
from graft.report.sections._lines import Lines
from search.analysis.study.averaging_grid import CONDITIONS
from search.analysis.study.gaps import AVERAGES, averages_by_gap

_DROPOUT = "model.embedding_dropout"
_FEWEST = 3
"""Fewest gaps that make a curve."""
_RAW = look("raw").label
_SERIES = {"raw": _RAW, **{kind: f"BEMA: {kind}" for kind in AVERAGES}}


@final
class GapCurves(Lines):
    """Two figures: averages against raw parameters, and raw ones by the dropout of embeddings.

    For studies whose trials differ in `task.generalisation_gap`, as those of Othello; groups of the
    set complement have figures of their own.
    """

    after = "logit_spread"
    subject = "trials"
    figures = 2
    x_label, label = "generalisation gap", "{metric}"
    scaled = ("mean",)
    legend_inches = 0.9
    caption = (
        "{metric} by generalisation gap, each trial with its last validation: raw parameters, and of the averages "
        "of one training run the best, the mean of the best ten and the mean of all. The best is chosen by the "
        "values that are shown, which flatters it. Lines join means over trials of like gap, five gaps together."
    )

    @cached_property
    def parameters(self) -> pl.DataFrame:
        """number, gap and, if it is drawn, dropout."""
        parameters = self.data.parameters(rf"{GAP}|{_DROPOUT}".replace(".", r"\."))
        names = {GAP: "gap", _DROPOUT: "dropout"}
        known = parameters.rename({path: name for path, name in names.items() if path in parameters.columns})
        return known.cast({"gap": pl.Float64}) if "gap" in known.columns else pl.DataFrame()

    def read_lines(self) -> pl.DataFrame:
        """Return each kind's values by gap, with trial numbers (search.analysis.study.gaps)."""
        if self.parameters.is_empty() or not self.data.groups.is_empty():
            return pl.DataFrame()
        metric, condition = self.data.metric, self.data.condition
        plain = self.data.scores.of(metric).filter(pl.col("condition") == condition)
        grid = self.data.scores.of_name(metric, CONDITIONS)
        values = averages_by_gap(grid, plain, self.parameters.select("number", "gap").drop_nulls())
        series = pl.col("kind").replace_strict(_SERIES)
        return values.select("number", series=series, x="gap", mean="value")

    @property
    def applies(self) -> bool:
        if not super().applies:
            return False
        shown = "dropout" in self.parameters.columns or self.lines["series"].n_unique() > 1
        return shown and self.lines["x"].n_unique() >= _FEWEST

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        metric, number = self.data.metric, figures.own
        if self.lines["series"].n_unique() > 1:
            yield from super().blocks(figures)
            number += 1
        if "dropout" in self.parameters.columns:
            dropouts = self.parameters.select("number", "dropout").drop_nulls()
            raw = self.lines.filter(pl.col("series") == _RAW).join(dropouts, on="number")
            caption = f"{metric} of raw parameters by generalisation gap, coloured by the dropout rate of embeddings."
            with figure_style():
                figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.6), layout="constrained")
                axes = figure.subplots()
                xs, heights, colours = (raw[name].to_list() for name in ("x", "mean", "dropout"))
                points = axes.scatter(xs, heights, c=colours, cmap="viridis")
                figure.colorbar(points, ax=axes, label="dropout of embeddings")
                axes.set(xlabel="generalisation gap", ylabel=metric)
                fit_scale(axes, heights)
                svg = to_svg(figure, f"figure{number}")
            yield Picture(number=number, caption=caption, svg=svg)

    def looks(self, lines: pl.DataFrame) -> Looks:
        colours = (look("raw").colour, *map(arm_colour, (1, 6, 3)))
        return {name: {"color": colour} for name, colour in zip(_SERIES.values(), colours, strict=True)}

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        for name, own_look in looks.items():
            points = lines.filter(pl.col("series") == name)
            axes.plot(points["x"].to_list(), points["mean"].to_list(), ".", markersize=4, alpha=0.5, **own_look)
            means = points.group_by(bin=pl.col("x") // 5).agg(pl.col("x", "mean").mean()).sort("x")
            axes.plot(means["x"].to_list(), means["mean"].to_list(), linewidth=1.8, **own_look)
