"""The distribution of all trials: which share of them is at least as good as a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import polars as pl
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import figure_style, grid, key, label_decades, legend, look, to_svg
from graft.report.rendering.series import (
    ALL_ZERO,
    drawn_series,
    is_series,
    say_series,
    series_label,
    variants_of,
)
from graft.report.sections import FigureNumbers, Part, Section, left_out
from search.analysis.study.scores import distribution


@final
class Distribution(Section):
    """A panel for each metric, a line for each variant."""

    part = Part.FIGURES
    after = "dropout"
    subject = "trials"
    figures = 1

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        series = drawn_series(self.data.statistics)
        if not series:
            yield left_out(f"Figure {figures.own}, the distribution of all trials", ALL_ZERO)
            return
        caption = (
            "All trials, each with its best validation: the share that is at least as good as the value below. "
            "Where a line crosses 1 % is the threshold of the best 1 %."
        )
        caption += say_series(self.data.statistics, series)
        shares = pl.concat([distribution(scores) for scores in self.data.scores.in_parts()])
        with figure_style():
            figure, panels = grid(1, len(series))
            for axes, metric in zip(panels[0], series, strict=True):
                cells = shares.filter(is_series(metric))
                for variant in variants_of(cells):
                    rows = cells.filter(pl.col("variant") == variant)
                    xs, ys, colour = rows["value"].to_list(), rows["share"].to_list(), look(variant).colour
                    axes.step(xs, ys, color=colour, linewidth=1.8, where="post")
                axes.set_xlabel(series_label(metric))
                values = cells["value"].to_list()
                if min(values) > 0 and max(values) > 10 * min(values):
                    axes.set_xscale("log")
                    label_decades(axes.xaxis, max(values) / min(values))
            panels[0, 0].set(yscale="log", ylabel="share of trials at least as good")
            upright: Axis = panels[0, 0].yaxis
            upright.set_major_locator(LogLocator(numticks=8))
            upright.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
            upright.set_minor_formatter(NullFormatter())
            legend(figure, [key(variant) for variant in variants_of(shares)])
            svg = to_svg(figure, f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)
