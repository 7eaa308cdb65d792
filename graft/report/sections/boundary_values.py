"""The range of a regressor's answers as the functions that it is asked for grow (paper 000, Figures 1 and 9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.lines import draw_beside_answers, draw_line, read_series, scale_numbers
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import INK, arm_colour
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.study.condition_lines import LINE, longest_lines, trace_lines

_ENDS = ("highest_output", "lowest_output")
_TYPICAL = "zero_mse"
"""The mean square of the right answers: its root is how large they are."""
_MOST_PANELS = 3


@final
class BoundaryValues(Section):
    """The largest and the smallest answer to a prompt, mean over prompts and trials: a line each for every arm."""

    part = Part.FIGURES
    order = 64
    figures = 1

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Those of trace_lines, with `end`, one of _ENDS or _TYPICAL."""
        series = read_series(self.data)
        every = [
            trace_lines(self.data.scores.of(name, "="), series).with_columns(end=pl.lit(name))
            for name in (*_ENDS, _TYPICAL)
        ]
        return longest_lines(pl.concat(every), self.data.condition, _MOST_PANELS)

    @property
    def applies(self) -> bool:
        return not self.lines.filter(pl.col("end") == _ENDS[0]).is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "Boundary values: the largest and the smallest answer to a prompt, means over prompts and trials with "
            "Student's 95 % intervals over trials. Dashed: plus and minus the root of the mean square of the right "
            "answers. Lines that level off where the dashed ones rise do not leave the range of training (paper 000, "
            "Figures 1 and 9)."
        )
        caption += say_shown(self.lines["panel"].n_unique(), self.lines["panels"][0], "numbers of conditions")
        svg = draw_beside_answers(self.lines, _draw, f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(axes: Axes, frame: pl.DataFrame, order: Sequence[str]) -> None:
    for (series, end), own in frame.group_by("series", "end", maintain_order=True):
        if end in _ENDS:
            draw_line(axes, own, arm_colour(order.index(str(series))))
    typical = frame.filter(pl.col("end") == _TYPICAL, pl.col("series") == order[0]).sort("x")
    for sign in (1, -1):
        axes.plot(typical["x"].to_list(), (sign * typical["mean"].sqrt()).to_list(), "--", color=INK, linewidth=1)
    scale_numbers(axes, frame["x"].to_list())
    axes.set_xlabel(frame[LINE[0]][0])
    axes.set_ylabel("answer")
