"""A table of arms by a number of the conditions, with shades over orders of magnitude."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import draw_cells, figure_style, label_decades, to_svg
from graft.report.rendering.formatting import number as written
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from graft.report.sections._lines import read_series
from search.analysis.study.condition_lines import LINE, order_lines, trace_lines

_MOST_TABLES = 2
_CELL = (0.62, 0.3)
"""Width and height of a cell, in inches."""


@final
class ArmConditions(Section):
    """Rows are arms, columns the values of one number; the first two such numbers."""

    part = Part.FIGURES
    after = "condition_lines"
    subject = "arms"
    figures = _MOST_TABLES

    @cached_property
    def cells(self) -> pl.DataFrame:
        """The rows of all tables, in the order of search.analysis.study.condition_lines."""
        scores = self.data.scores.of(self.data.metric, "=")
        return order_lines(trace_lines(scores, read_series(self.data)), self.data.condition)

    @property
    def applies(self) -> bool:
        return not self.cells.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        tables = self.cells.partition_by(LINE, maintain_order=True)
        more = say_shown(_MOST_TABLES, len(tables), "numbers of conditions")
        for number, cells in enumerate(tables[:_MOST_TABLES], figures.own):
            across, rest = cells["across"][0], cells["rest"][0]
            caption = (
                f"{self.data.metric} of each arm by {across}{f', {rest}' if rest else ''}: means over "
                f"{cells['trials'].max()} seeds, raw parameters. Shades are on a logarithmic scale where the numbers "
                f"go over a factor of ten.{more}"
            )
            yield Picture(number=number, caption=caption, svg=_draw(cells, number))


def _draw(cells: pl.DataFrame, number: int) -> str:
    xs: list[float] = cells["x"].unique().sort().to_list()
    arms: list[str] = cells["series"].unique(maintain_order=True).to_list()
    known = {(arm, x): mean for arm, x, mean in cells.select("series", "x", "mean").iter_rows()}
    rows = [[known.get((arm, x)) for x in xs] for arm in arms]
    values = [value for row in rows for value in row if value is not None]
    low, high = min(values), max(values)
    scale: Any = LogNorm(low, high) if 0 < 10 * low < high else Normalize(low, high)
    with figure_style():
        size = (2.2 + len(xs) * _CELL[0], 1.1 + len(arms) * _CELL[1])
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        image = draw_cells(axes, rows, written, lambda x: high > low and scale(x) > 0.6, norm=scale)
        axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
        axes.set_yticks(range(len(arms)), arms)
        axes.set_xlabel(cells["across"][0])
        bar = figure.colorbar(image, ax=axes)
        if isinstance(scale, LogNorm):
            label_decades(bar.ax.yaxis, high / low)
        return to_svg(figure, f"figure{number}")
