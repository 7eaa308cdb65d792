"""The spread of attention logits over training against its upper bound (paper 001, Figure 9)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graft.report.lines import draw_line, draw_panels
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import arm_colour, fit_scale
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.statistics.intervals import student_quantile

_SPREAD, _BOUND = "logit_spread", "logit_spread_bound"
_COLOURS = {_SPREAD: arm_colour(1), _BOUND: arm_colour(2)}


@final
class LogitSpread(Section):
    """Two lines over optimizer steps, for studies with `training.diagnostics` that validate several times."""

    part = Part.FIGURES
    order = 70
    figures = 1

    @cached_property
    def curves(self) -> pl.DataFrame:
        """name, x (steps), mean, low, high: over trials, on the validation set."""
        if not any(name == _BOUND for name, _, _ in self.data.summaries):
            return pl.DataFrame()
        own = pl.col("name").is_in([_SPREAD, _BOUND]) & (pl.col("condition") == "") & (pl.col("variant") == "raw")
        kept = pl.concat([batch.filter(own).cast({"name": pl.String}) for batch in self.data.load_metrics()])
        mean, count = pl.col("value").mean(), pl.len()
        reach = student_quantile(count) * pl.col("value").std() / count.sqrt()
        grouped = kept.group_by("name", x="step").agg(
            mean=mean, low=pl.when(count > 1).then(mean - reach), high=pl.when(count > 1).then(mean + reach)
        )
        return grouped.sort("name", "x")

    @property
    def applies(self) -> bool:
        return not self.curves.is_empty() and self.curves["x"].n_unique() > 1

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "Spread of the attention logits on the validation set, largest minus smallest, and the bound that the "
            "norms of queries, keys and inputs give it (paper 001, Proposition 3.1 and Figure 9): means over trials "
            "with Student's 95 % intervals."
        )
        keys = [
            Line2D([], [], color=_COLOURS[_SPREAD], linewidth=1.8, label="spread"),
            Line2D([], [], color=_COLOURS[_BOUND], linewidth=1.8, label="upper bound"),
        ]
        svg = draw_panels([("", self.curves)], _draw, keys, f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(axes: Axes, frame: pl.DataFrame) -> None:
    for (name,), own in frame.group_by("name", maintain_order=True):
        draw_line(axes, own, _COLOURS[str(name)])
    fit_scale(axes, frame["mean"].to_list())
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("spread of logits")
