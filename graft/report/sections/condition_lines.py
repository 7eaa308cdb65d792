"""The objective's metric over a number of its conditions: lengths, spreads, sizes of inputs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.lines import draw_panels, draw_series, panels_of, read_series, series_keys
from graft.report.rendering.document import Block, Picture
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.study.condition_lines import longest_lines, trace_lines

_MOST_PANELS = 6
_SWEPT = ("temperature", "kappa", "eta")
"""Numbers that are no shift of the data; other sections have them."""


@final
class ConditionLines(Section):
    """A panel for each number with the others held, a line for each arm, or for each scorer."""

    part = Part.FIGURES
    order = 60
    figures = 1

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Of _MOST_PANELS panels (search.analysis.study.condition_lines)."""
        scores = self.data.scores.of(self.data.metric, "=")
        found = trace_lines(scores, read_series(self.data), _SWEPT)
        return longest_lines(found, self.data.condition, _MOST_PANELS)

    @property
    def applies(self) -> bool:
        return not self.lines.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            f"{self.data.metric} over a number of its conditions, the others as the title has them: means over trials, "
            "raw parameters, each with its last validation; bands are Student's 95 % intervals of the mean."
        )
        order: list[str] = self.lines["series"].unique(maintain_order=True).to_list()
        panels = panels_of(self.lines)
        name = f"figure{figures.own}"
        svg = draw_panels(panels, lambda axes, frame: draw_series(axes, frame, order), series_keys(order), name)
        yield Picture(number=figures.own, caption=caption, svg=svg)
