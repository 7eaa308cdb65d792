"""Maps of the objective's metric over conditions of two numbers, such as length and spread."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl
from matplotlib.figure import Figure

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import draw_cells, figure_style, to_svg
from graft.report.rendering.formatting import number as written
from graft.report.sections import FigureNumbers, Part, Section
from graft.report.sections._lines import read_series
from search.analysis.study.condition_maps import TWO_NUMBERS, map_conditions

_CELL = (0.5, 0.3)
"""Width and height of a cell, in inches."""
_MOST_NUMBERS = 12
"""Values along an axis up to which cells have their numbers written in them."""


@final
class ConditionMaps(Section):
    """A figure for each two numbers of conditions, with a panel for each scorer or arm."""

    part = Part.FIGURES
    after = "best_of_k"
    figures = 1

    @property
    def figure_count(self) -> int:
        pairs = self.means.select("across", "up").n_unique() if self.applies else 0
        return max(self.figures, pairs)

    @cached_property
    def means(self) -> pl.DataFrame:
        """A row for each cell (search.analysis.study.condition_maps)."""
        scores = self.data.scores.of(self.data.metric, TWO_NUMBERS)
        if scores.is_empty():
            return scores
        return map_conditions(scores, read_series(self.data).rename({"series": "panel"}))

    @property
    def applies(self) -> bool:
        return not self.means.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        pairs = self.means.group_by("across", "up", maintain_order=True)
        panel = "arm" if self.data.experiment else "scorer"
        for number, ((across, up), cells) in enumerate(pairs, figures.own):
            trials = "the trials that stand for an arm" if self.data.experiment else "trials"
            caption = (
                f"{self.data.metric} by {across} and {up}: means over {trials}, raw parameters, each with its last "
                "validation"
            )
            panels = f", a panel for each {panel}." if cells["panel"].n_unique() > 1 else "."
            svg = _draw(cells, number, self.data.metric)
            yield Picture(number=number, caption=caption + panels, svg=svg)


def _draw(cells: pl.DataFrame, number: int, metric: str) -> str:
    """Draw one pair of numbers, all panels with one scale of colours."""
    across, up = cells.select("across", "up").row(0)
    xs, ys = (cells[name].unique().sort().to_list() for name in ("x", "y"))
    titles = cells["panel"].unique().sort().to_list()
    values = cells["value"].drop_nulls().to_list()
    low, high = min(values), max(values)
    spread = high - low or 1.0
    small = max(len(xs), len(ys)) <= _MOST_NUMBERS
    width = max(2.2, len(xs) * (_CELL[0] if small else 0.12) + 0.8)
    with figure_style():
        size = (width * len(titles) + 0.8, max(1.8, len(ys) * (_CELL[1] if small else 0.1) + 1))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(titles), squeeze=False, sharey=True)[0]
        for axes, title in zip(panels, titles, strict=True):
            points = cells.filter(panel=title).select("x", "y", "value").rows()
            known = {(x, y): value for x, y, value in points}
            rows = [[known.get((x, y)) for x in xs] for y in ys]
            looks: dict[str, Any] = {"vmin": low, "vmax": high, "origin": "lower"}
            write = written if small else None
            draw_cells(axes, rows, write, lambda mean: (mean - low) / spread > 0.6, size=7, **looks)
            every = max(1, len(xs) // 6), max(1, len(ys) // 6)
            axes.set_xticks(range(0, len(xs), every[0]), [f"{x:g}" for x in xs[:: every[0]]])
            axes.set_yticks(range(0, len(ys), every[1]), [f"{y:g}" for y in ys[:: every[1]]])
            axes.set(xlabel=across, title=title)
        panels[0].set_ylabel(up)
        figure.colorbar(panels[0].images[0], ax=panels, label=metric)
        return to_svg(figure, f"figure{number}")
