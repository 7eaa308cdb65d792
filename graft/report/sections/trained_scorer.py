"""The same weights with the scorer of training and with that of validation, where these differ."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Table
from graft.report.rendering.formatting import MISSING, number
from graft.report.rendering.series import series_label
from graft.report.sections import PAIRED, FigureNumbers, Part, Section
from search.analysis.study.trained_scorer import compare_with_trained
from spaces.records import TRAINED


@final
class TrainedScorer(Section):
    """The change that the other scorer makes, paired by trial."""

    part = Part.RESULTS
    after = "transfer_scores"
    notes = (f"The two scorers: {PAIRED}",)

    @cached_property
    def comparison(self) -> pl.DataFrame:
        """A row for each metric with both scorers (search.analysis.study.trained_scorer)."""
        conditions = (condition.split(" ") for _, condition, _ in self.data.scores.unreserved)
        if not any(TRAINED in words for words in conditions):
            return pl.DataFrame()
        return compare_with_trained(self.data.scores.all())

    @property
    def applies(self) -> bool:
        return not self.comparison.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        rows = [
            [
                series_label((row["name"], row["condition"])),
                row["variant"],
                number(row["pairs"]),
                *map(number, (row["trained"], row["value"], row["mean"])),
                MISSING if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}",
                *map(number, (row["p"], row["q"])),
            ]
            for row in self.comparison.iter_rows(named=True)
        ]
        caption = (
            "The same weights with the scorer of training and with that of validation, last validations, paired by "
            "trial"
        )
        header = ["Metric", "Variant", "Trials", "As trained", "As validated"]
        header += ["Change", "95 % interval", "p", "Adjusted p"]
        yield Table(caption=caption, header=header, rows=rows, labels=2, folded=len(rows) > 24)
