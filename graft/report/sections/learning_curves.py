"""Learning curves of an experiment's arms, over their seeds."""

from __future__ import annotations

from typing import ClassVar, final

import polars as pl

from graft.report.sections._lines import Lines


@final
class LearningCurves(Lines):
    """A line for each arm over optimizer steps, with the interval of its mean."""

    after = "arm_differences"
    subject = "arms"
    x_label, label = "optimizer steps", "{label}"
    marks: ClassVar = {"linewidth": 1.8}
    scaled = ("mean", "low")
    legend_inches = 0.7
    caption = (
        "{label} at each validation: the mean over seeds of each arm, with Student's 95 % interval of the mean. A "
        "trial counts until it diverges."
    )

    def read_lines(self) -> pl.DataFrame:
        return self.data.require_experiment().curves.rename({"arm": "series", "step": "x"})
