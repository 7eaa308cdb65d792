"""Training curves of stage two against the baseline (paper 002, Figures 2, 10 and 15)."""

from __future__ import annotations

from typing import final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from graft.report.sections._lines import Looks
from graft.report.sections._transfers import TransferFigure


@final
class TransferCurves(TransferFigure):
    """A panel for each target's objective: a thin line for each pair, a thick one for the mean."""

    after = "gap_curves"
    most = 12
    panels_are = "targets"
    x_label = "optimizer steps"
    scaled = ("mean",)
    caption = (
        "Training curves of stage two: the target's objective at each validation, a thin line for each pair and a "
        "thick one for the mean of those that have not diverged. Of the sources those that were found on the "
        "target's own data are drawn, or all where there are none."
    )

    def read_lines(self) -> pl.DataFrame:
        """Return the targets' objectives by step, for their own sources, with number and pair."""
        metrics = ("name", "variant", "condition")
        rows: list[tuple[str, ...]] = []
        for target in self.targets:
            measured = self.data.transfer_tasks[target].objective.metric_name
            rows += [(target, source, *measured) for source in self.own_sources(target)]
        columns = ("target", "source", *metrics)
        wanted = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
        trials = self.stage_two.join(wanted, on=["target", "source"], maintain_order="left")
        texts = pl.col(metrics).cast(pl.String)
        key, batches = ["number", *metrics], self.data.load_metrics()
        points = pl.concat(batch.with_columns(texts).join(trials, on=key) for batch in batches)
        target = pl.col("target").cast(pl.Enum(self.targets))
        kept = points.filter(pl.col("value").is_finite()).sort(target, "number", "step")
        return kept.select("number", "pair", title="target", series="source", x="step", mean="value")

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        for source, look in looks.items():
            curves = lines.filter(pl.col("series") == source)
            for _, line in curves.group_by("number", maintain_order=True):
                axes.plot(line["x"].to_list(), line["mean"].to_list(), linewidth=0.6, alpha=0.5, **look)
            mean = curves.group_by("x").agg(pl.col("mean").mean()).sort("x")
            axes.plot(mean["x"].to_list(), mean["mean"].to_list(), linewidth=2.0, **look)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_ylabel(str(self.data.transfer_tasks[lines["title"][0]].objective))
