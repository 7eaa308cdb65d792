"""A regressor's answers over x for one line, with the line itself (paper 000, Figures 1 and 9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.lines import draw_beside_answers, draw_line, read_series
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import INK, arm_colour
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.study.condition_lines import longest_lines, trace_lines

_METRIC, _ASKED = "answer", "asked"
_SLOPE = re.compile(r"\bslope=(-?[\d.]+)")
_MOST_PANELS = 3


@final
class Answers(Section):
    """A panel for each slope, a line for each arm: the answer at the last x of a prompt, means over trials."""

    part = Part.FIGURES
    order = 88
    figures = 1

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Of at most _MOST_PANELS slopes (search.analysis.study.condition_lines)."""
        found = trace_lines(self.data.scores.of(_METRIC, f"{_ASKED}="), read_series(self.data))
        slopes = found.filter((pl.col("across") == _ASKED) & pl.col("rest").str.contains("slope="))
        return longest_lines(slopes, "", _MOST_PANELS)

    @property
    def applies(self) -> bool:
        return not self.lines.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "Answers to prompts of one line, y = slope x: the mean over prompts of the prediction at the last x, means "
            "over trials with Student's 95 % intervals. Dashed: the line. Answers that level off are boundary values "
            "(paper 000, Figures 1 and 9)."
        )
        caption += say_shown(self.lines["panel"].n_unique(), self.lines["panels"][0], "slopes")
        svg = draw_beside_answers(self.lines, _draw, f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(axes: Axes, frame: pl.DataFrame, order: Sequence[str]) -> None:
    for (series,), own in frame.group_by("series", maintain_order=True):
        draw_line(axes, own, arm_colour(order.index(str(series))))
    found = _SLOPE.search(frame["rest"][0])
    assert found, "lines are those of slopes"
    xs = sorted(frame["x"].unique().to_list())
    axes.plot(xs, [float(found[1]) * x for x in xs], "--", color=INK, linewidth=1)
    axes.set_xlabel("x")
    axes.set_ylabel("answer")
