"""A target's objective over a number of its conditions, by what was carried to it (paper 002, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.lines import draw_panels, draw_series
from graft.report.rendering.document import Block, Picture
from graft.report.sections import FigureNumbers, Part, say_shown
from graft.report.sections._transfers import TransferSection
from search.analysis.metrics import range_of
from search.analysis.study.condition_lines import longest_lines, trace_lines

_MOST_PANELS = 6


@final
class TransferLines(TransferSection):
    """A panel for each target that has such conditions, a line for each of its own sources."""

    part = Part.FIGURES
    order = 86
    figures = 1

    @cached_property
    def panels(self) -> list[tuple[str, pl.DataFrame]]:
        """Title and lines (search.analysis.study.condition_lines) of the targets that have some."""
        found: list[tuple[str, pl.DataFrame]] = []
        for target in self.targets:
            objective = self.data.transfer_tasks[target].objective
            own = (pl.col("target") == target) & pl.col("source").is_in(self.own_sources(target))
            series = self.stage_two.filter(own).select("number", series="source")
            traced = trace_lines(self.data.scores.of(objective.metric, "="), series, within=range_of(objective.metric))
            lines = longest_lines(traced, objective.condition, 1)
            if not lines.is_empty():
                found.append((" ".join(filter(None, [f"{objective.metric} on {target}", lines["rest"][0]])), lines))
        return found

    @property
    def applies(self) -> bool:
        return super().applies and bool(self.panels)

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "The objective's metric of stage two over a number of its conditions: means over pairs, raw parameters, "
            "each with its last validation; bands are Student's 95 % intervals. Of the sources those that were found "
            "on the target's own data, or all where there are none."
        )
        drawn = self.panels[:_MOST_PANELS]
        caption += say_shown(len(drawn), len(self.panels), "targets with such conditions")
        shown = {name for _, lines in drawn for name in lines["series"]}
        keys = self.keys_of(list(shown))
        svg = draw_panels(
            drawn, lambda axes, frame: draw_series(axes, frame, self.sources), keys, f"figure{figures.own}"
        )
        yield Picture(number=figures.own, caption=caption, svg=svg)
