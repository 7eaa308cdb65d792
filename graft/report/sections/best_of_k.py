"""The expected score of the best of k configurations of each arm: how much is owed to the number of tries."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.lines import Line2D

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import arm_colour, figure_style, fit_scale, legend, single_panel, to_svg
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.arms.experiment import best_of_k


@final
class BestOfK(Section):
    """A line for each arm, for experiments that try several configurations."""

    part = Part.FIGURES
    order = 46
    subject = "arms"
    figures = 1

    @cached_property
    def expected(self) -> pl.DataFrame:
        """arm, tries, value (search.analysis.arms.experiment.best_of_k)."""
        experiment = self.data.require_experiment()
        return best_of_k(experiment.arms, experiment.direction)

    @property
    def applies(self) -> bool:
        return self.expected["tries"].n_unique() > 1

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            f"Expected {self.data.study['objective']} of the best of k configurations, drawn from those that each arm "
            "tried (Tang et al. 2020). Arms are to be compared at the same k."
        )
        svg = _draw(self.expected, self.data.study["objective"], figures.own)
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(expected: pl.DataFrame, label: str, number: int) -> str:
    arms: list[str] = expected["arm"].unique(maintain_order=True).to_list()
    with figure_style():
        figure, axes = single_panel()
        for index, arm in enumerate(arms):
            own = expected.filter(pl.col("arm") == arm)
            axes.step(
                own["tries"].to_list(), own["value"].to_list(), color=arm_colour(index), linewidth=1.8, where="mid"
            )
        axes.set_xlabel("configurations tried, k")
        axes.set_ylabel(label)
        fit_scale(axes, expected["value"].to_list())
        keys = [Line2D([], [], color=arm_colour(index), linewidth=1.8, label=arm) for index, arm in enumerate(arms)]
        legend(figure, keys)
        return to_svg(figure, f"figure{number}")
