"""A target's objective over a number of its conditions, by source (paper 002, Figure 3)."""

from __future__ import annotations

from typing import final

import polars as pl

from graft.report.sections._transfers import TransferFigure
from search.analysis.metrics import range_of
from search.analysis.study.condition_lines import order_lines, trace_lines


@final
class TransferLines(TransferFigure):
    """A panel for each target that has such conditions, a line for each of its own sources."""

    after = "transfer_sizes"
    panels_are = "targets with such conditions"
    caption = (
        "The objective's metric of stage two over a number of its conditions: means over pairs, raw parameters, "
        "each with its last validation; bands are Student's 95 % intervals. Of the sources those that were found "
        "on the target's own data, or all where there are none."
    )

    def read_lines(self) -> pl.DataFrame:
        panels: list[pl.DataFrame] = []
        for target in self.targets:
            objective = self.data.transfer_tasks[target].objective
            is_shown = (pl.col("target") == target) & pl.col("source").is_in(self.own_sources(target))
            series = self.stage_two.filter(is_shown).select("number", series="source")
            scores = self.data.scores.of(objective.metric, self.conditions)
            traced = trace_lines(scores, series, within=range_of(objective.metric))
            lines = order_lines(traced, objective.condition)
            for panel in lines.partition_by("across", "rest", maintain_order=True)[:1]:
                title = f"{objective.metric} on {target} {panel['rest'][0]}".rstrip()
                panels.append(panel.with_columns(title=pl.lit(title)))
        return pl.concat(panels) if panels else pl.DataFrame()
