"""A regressor's answers over x for one line, with the line itself (paper 000, Figures 1 and 9)."""

from __future__ import annotations

import re
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.rendering.drawing import INK, Looks
from graft.report.sections._lines import Lines

_ASKED = "asked"
_SLOPE = re.compile(r"\bslope=(-?[\d.]+)")


@final
class Answers(Lines):
    """A panel for each slope, a line for each arm: the mean answer at the last x of a prompt."""

    after = "transfer_lines"
    metrics = ("answer",)
    conditions = f"{_ASKED}="
    most = 3
    panels_are = "slopes"
    x_label, label, label_all = "x", "answer", True
    scaled = ()
    dashed = "right answers"
    caption = (
        "Answers to prompts of one line, y = slope x: the mean over prompts of the prediction at the last x, means "
        "over trials with Student's 95 % intervals. Dashed: the line. Answers that level off are boundary values "
        "(paper 000, Figures 1 and 9)."
    )

    def read_lines(self) -> pl.DataFrame:
        is_slope = pl.col("title").str.contains("slope=")
        return super().read_lines().filter(pl.col("across") == _ASKED, is_slope)

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        super().draw(axes, lines, looks)
        match = _SLOPE.search(lines["title"][0])
        assert match, "lines are those of slopes"
        xs = sorted(lines["x"].unique().to_list())
        axes.plot(xs, [float(match[1]) * x for x in xs], "--", color=INK, linewidth=1)
