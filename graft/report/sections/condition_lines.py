"""The objective's metric over a number of its conditions: lengths, spreads, sizes of inputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import final

import polars as pl

from graft.report.rendering.document import Block
from graft.report.sections import FigureNumbers, say_shown
from graft.report.sections._lines import Lines, read_series

_MOST_TASKS = 30
_TASK = r"task\.(algorithm|name)"
"""The parameters that name the task of a trial, where a study has several."""


@final
class ConditionLines(Lines):
    """A panel for each number with the others held, or each task; a line for each arm or scorer."""

    after = "condition_maps"
    without = ("temperature", "kappa", "eta")  # no shifts of the data; other sections have them
    panels_are = "numbers of conditions that lines can go over"
    label = "{metric}"
    caption = (
        "{metric} over a number of its conditions, the others as the title has them: means over trials, raw "
        "parameters, each with its last validation; bands are Student's 95 % intervals of the mean."
    )

    @cached_property
    def tasks(self) -> dict[str, pl.DataFrame]:
        """Task -> the numbers of its trials, in their order; empty if all have the same task."""
        named = self.data.parameters(_TASK).sort("number")
        differ = [name for name in named.columns[1:] if named[name].n_unique() > 1]
        if not differ:
            return {}
        parts = named.partition_by(differ, as_dict=True, maintain_order=True)
        return {" ".join(map(str, task)): trials.select("number") for task, trials in parts.items()}

    def read_lines(self) -> pl.DataFrame:
        if not self.tasks:
            return super().read_lines()
        metric, series = self.data.metric, read_series(self.data)
        scores, frames = self.data.scores.of(metric, self.conditions), list[pl.DataFrame]()
        for task, trials in self.tasks.items():
            lines = self.trace({metric: (scores, series.join(trials, on="number", how="semi"))})
            panels = lines.partition_by("across", "title", maintain_order=True)
            title = pl.concat_str(pl.lit(f"{task} "), "title").str.strip_chars_end()
            if panels:
                frames.append(panels[0].with_columns(title=title, panels=pl.lit(len(panels))))
        return pl.concat(frames) if frames else pl.DataFrame()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        if not self.tasks:
            yield from super().blocks(figures)
            return
        picture = self.picture(figures.own, self.lines, self.caption, self.label, _MOST_TASKS, "tasks")
        note = say_shown(1, max(self.lines["panels"]), self.panels_are)
        yield replace(picture, caption=picture.caption + note)
