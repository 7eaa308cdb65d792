"""Training curves of stage two: what was found on a task against the baseline (paper 002, Figures 2, 10 and 15)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from graft.report.lines import draw_panels
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import arm_colour, fit_scale
from graft.report.sections import FigureNumbers, Part, say_shown
from graft.report.sections._transfers import TransferSection

_MOST_PANELS = 12


@final
class TransferCurves(TransferSection):
    """A panel for each target: a thin line for each pair, a thick one for their mean, of the target's objective."""

    part = Part.FIGURES
    order = 82
    figures = 1

    @cached_property
    def curves(self) -> pl.DataFrame:
        """number, source, target, pair, step, value: of each target's objective, for its own sources."""
        shown = pl.DataFrame(
            [(source, target) for target in self.targets[:_MOST_PANELS] for source in self.own_sources(target)],
            schema={"source": pl.String, "target": pl.String},
            orient="row",
        )
        tasks = self.data.transfer_tasks
        metrics = ("name", "variant", "condition")
        measured = [
            (target, one.objective.metric, one.objective.variant, one.objective.condition)
            for target, one in tasks.items()
        ]
        wanted = pl.DataFrame(measured, schema=dict.fromkeys(("target", *metrics), pl.String), orient="row")
        trials = self.stage_two.join(shown, on=["source", "target"], maintain_order="left").join(wanted, on="target")
        found = [
            batch.with_columns(pl.col(metrics).cast(pl.String)).join(trials, on=["number", *metrics])
            for batch in self.data.load_metrics()
        ]
        columns = ("number", "source", "target", "pair", "step", "value")
        return pl.concat(found).select(columns).filter(pl.col("value").is_finite()).sort("number", "step")

    @property
    def applies(self) -> bool:
        return super().applies and self.curves["step"].n_unique() > 1

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "Training curves of stage two: the target's objective at each validation, a thin line for each pair and a "
            "thick one for the mean of those that have not diverged. Of the sources those that were found on the "
            "target's own data are drawn, or all where there are none."
        )
        caption += say_shown(min(_MOST_PANELS, len(self.targets)), len(self.targets), "targets")
        panels = [(target, self.curves.filter(pl.col("target") == target)) for target in self.targets[:_MOST_PANELS]]
        shown = self.curves["source"].unique().to_list()
        svg = draw_panels(panels, self._draw, self.keys_of(shown), f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)

    def _draw(self, axes: Axes, frame: pl.DataFrame) -> None:
        for source in self.sources:
            own, colour = frame.filter(pl.col("source") == source), arm_colour(self.sources.index(source))
            for _, line in own.group_by("number", maintain_order=True):
                axes.plot(line["step"].to_list(), line["value"].to_list(), color=colour, linewidth=0.6, alpha=0.5)
            mean = own.group_by("step").agg(pl.col("value").mean()).sort("step")
            axes.plot(mean["step"].to_list(), mean["value"].to_list(), color=colour, linewidth=2.0)
        fit_scale(axes, frame["value"].to_list())
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlabel("optimizer steps")
        if not frame.is_empty():
            objective = self.data.transfer_tasks[frame["target"][0]].objective
            axes.set_ylabel(str(objective))
