"""Learning curves of an experiment's arms, over their seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import polars as pl
from matplotlib.lines import Line2D

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import arm_colour, figure_style, fit_scale, legend, single_panel, to_svg
from graft.report.sections import FigureNumbers, Part, Section


@final
class LearningCurves(Section):
    """The objective's metric over optimizer steps: a line for each arm, with the interval of its mean."""

    part = Part.FIGURES
    order = 44
    subject = "arms"
    figures = 1

    @property
    def applies(self) -> bool:
        return self.data.require_experiment().curves["step"].n_unique() > 1

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        experiment = self.data.require_experiment()
        caption = (
            f"{experiment.label} at each validation: the mean over seeds of each arm, with Student's 95 % interval of "
            "the mean. A trial counts until it diverges."
        )
        svg = _draw(experiment.curves, experiment.label, figures.own)
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(curves: pl.DataFrame, label: str, number: int) -> str:
    arms: list[str] = curves["arm"].unique(maintain_order=True).to_list()
    with figure_style():
        figure, axes = single_panel()
        for index, arm in enumerate(arms):
            own, colour = curves.filter(pl.col("arm") == arm), arm_colour(index)
            axes.plot(own["step"].to_list(), own["mean"].to_list(), color=colour, linewidth=1.8)
            sure = own.drop_nulls(["low", "high"])
            steps, low, high = (sure[name].to_list() for name in ("step", "low", "high"))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel(label)
        fit_scale(axes, [value for name in ("mean", "low") for value in curves[name].drop_nulls().to_list()])
        keys = [Line2D([], [], color=arm_colour(index), linewidth=1.8, label=arm) for index, arm in enumerate(arms)]
        legend(figure, keys)
        return to_svg(figure, f"figure{number}")
