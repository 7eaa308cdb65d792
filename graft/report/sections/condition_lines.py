"""The objective's metric over a number of its conditions: lengths, spreads, sizes of inputs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.lines import draw_panels, draw_series, panels_of, read_series, series_keys
from graft.report.rendering.document import Block, Picture
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.metrics import range_of
from search.analysis.study.condition_lines import longest_lines, trace_lines

_MOST_PANELS = 6
_MOST_TASKS = 30
_TASK = r"task\.(algorithm|name)"
"""What names the task of a trial, where a study has several."""
_SWEPT = ("temperature", "kappa", "eta")
"""Numbers that are no shift of the data; other sections have them."""


@final
class ConditionLines(Section):
    """A panel for each number with the others held, or for each task; a line for each arm, or for each scorer."""

    part = Part.FIGURES
    order = 60
    figures = 1

    @cached_property
    def panels(self) -> list[tuple[str, pl.DataFrame]]:
        """Title and lines (search.analysis.study.condition_lines): _MOST_PANELS of one task, each of _MOST_TASKS."""
        scores = self.data.scores.of(self.data.metric, "=")
        series, within = read_series(self.data), range_of(self.data.metric)
        tasks = self._tasks
        if not tasks:
            return panels_of(
                longest_lines(trace_lines(scores, series, _SWEPT, within), self.data.condition, _MOST_PANELS)
            )
        found: list[tuple[str, pl.DataFrame]] = []
        for task, trials in list(tasks.items())[:_MOST_TASKS]:
            traced = trace_lines(scores, series.join(trials, on="number", how="semi"), _SWEPT, within)
            of_task = panels_of(longest_lines(traced, self.data.condition, 1))
            found += [(" ".join(filter(None, [task, rest])), lines) for rest, lines in of_task]
        return found

    @property
    def _tasks(self) -> dict[str, pl.DataFrame]:
        """Name of each task -> number of its trials, in the order of their numbers; none if all have the same task."""
        named = self.data.parameters(_TASK).sort("number")
        differ = [name for name in named.columns[1:] if named[name].n_unique() > 1]
        if not differ:
            return {}
        parts = named.partition_by(differ, as_dict=True, maintain_order=True)
        return {" ".join(map(str, task)): trials.select("number") for task, trials in parts.items()}

    @property
    def applies(self) -> bool:
        return bool(self.panels)

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            f"{self.data.metric} over a number of its conditions, the others as the title has them: means over trials, "
            "raw parameters, each with its last validation; bands are Student's 95 % intervals of the mean."
        )
        if len(self._tasks) > _MOST_TASKS:
            caption += say_shown(_MOST_TASKS, len(self._tasks), "tasks")
        every = max(lines["panels"][0] for _, lines in self.panels)
        caption += say_shown(
            1 if self._tasks else len(self.panels), every, "numbers of conditions that lines can go over"
        )
        order: list[str] = list(dict.fromkeys(name for _, lines in self.panels for name in lines["series"]))
        svg = draw_panels(
            self.panels,
            lambda axes, frame: draw_series(axes, frame, order),
            series_keys(order),
            f"figure{figures.own}",
            self.data.metric,
        )
        yield Picture(number=figures.own, caption=caption, svg=svg)
