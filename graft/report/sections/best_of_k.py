"""The expected best of k configurations of each arm: how much is owed to the number of tries."""

from __future__ import annotations

from typing import ClassVar, final

import polars as pl

from graft.report.sections._lines import Lines
from search.analysis.arms.experiment import best_of_k


@final
class BestOfK(Lines):
    """A line for each arm, for experiments that try several configurations."""

    after = "learning_curves"
    subject = "arms"
    x_label, label = "configurations tried, k", "{objective}"
    marks: ClassVar = {"linewidth": 1.8, "drawstyle": "steps-mid"}
    scaled = ("mean",)
    legend_inches = 0.7
    caption = (
        "Expected {objective} of the best of k configurations, drawn from those that each arm tried (Tang et al. "
        "2020). Arms are to be compared at the same k."
    )

    def read_lines(self) -> pl.DataFrame:
        experiment = self.data.require_experiment()
        expected = best_of_k(experiment.arms, experiment.direction)
        return expected.rename({"arm": "series", "tries": "x", "value": "mean"})
