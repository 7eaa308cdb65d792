"""The spread of attention logits over training against its upper bound (paper 001, Figure 9)."""

from __future__ import annotations

from typing import final

import polars as pl

from graft.report.rendering.drawing import Looks, arm_colour
from graft.report.sections._lines import Lines
from search.analysis.statistics.intervals import mean_with_interval

_SERIES = {"logit_spread": "spread", "logit_spread_bound": "upper bound"}


@final
class LogitSpread(Lines):
    """Two lines over optimizer steps, for `training.diagnostics` with several validations."""

    after = "attention_entropy"
    x_label, label = "optimizer steps", "spread of logits"
    scaled = ("mean",)
    caption = (
        "Spread of the attention logits on the validation set, largest minus smallest, and the bound that the "
        "norms of queries, keys and inputs give it (paper 001, Proposition 3.1 and Figure 9): means over trials "
        "with Student's 95 % intervals."
    )

    def read_lines(self) -> pl.DataFrame:
        if not any(name == "logit_spread_bound" for name, _, _ in self.data.summaries):
            return pl.DataFrame()
        plain = (pl.col("condition") == "") & (pl.col("variant") == "raw")
        is_drawn = pl.col("name").is_in(list(_SERIES)) & plain
        batches = (batch.filter(is_drawn).cast({"name": pl.String}) for batch in self.data.load_metrics())
        series = pl.col("name").replace_strict(_SERIES, return_dtype=pl.String)
        lines = pl.concat(batches).group_by(series=series, x="step").agg(**mean_with_interval())
        return lines.sort("series", "x")

    def looks(self, lines: pl.DataFrame) -> Looks:
        return {name: {"color": arm_colour(at)} for at, name in enumerate(_SERIES.values(), 1)}
