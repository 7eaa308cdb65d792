"""The range of a regressor's answers as the functions grow (paper 000, Figures 1 and 9)."""

from __future__ import annotations

from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.rendering.drawing import INK, Looks
from graft.report.sections._lines import Lines

_ENDS = ("highest_output", "lowest_output")
_TYPICAL = "zero_mse"
"""The mean square of the right answers: its root is how large they are."""


@final
class BoundaryValues(Lines):
    """A line for each arm's largest and smallest answer, the mean over prompts and trials."""

    after = "arm_conditions"
    metrics = (*_ENDS, _TYPICAL)
    most = 3
    label, label_all = "answer", True
    scaled = ("x",)
    dashed = "right answers"
    caption = (
        "Boundary values: the largest and the smallest answer to a prompt, means over prompts and trials with "
        "Student's 95 % intervals over trials. Dashed: plus and minus the root of the mean square of the right "
        "answers. Lines that level off where the dashed ones rise do not leave the range of training (paper 000, "
        "Figures 1 and 9)."
    )

    @property
    def applies(self) -> bool:
        return super().applies and _ENDS[0] in self.lines["part"]

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        for end in _ENDS:
            super().draw(axes, lines.filter(pl.col("part") == end), looks)
        first = pl.col("series") == next(iter(looks))
        typical = lines.filter(pl.col("part") == _TYPICAL, first).sort("x")
        xs, root = typical["x"].to_list(), typical["mean"].sqrt()
        for sign in (1, -1):
            axes.plot(xs, (sign * root).to_list(), "--", color=INK, linewidth=1)
