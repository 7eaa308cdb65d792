"""Diverged trials of each arm of an experiment: how many, when, and with which settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import MISSING, number, parameter
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.arms.divergence import compare_settings, count_lost, list_lost

_MOST_ROWS = 20
_SOME = pl.col("diverged") + pl.col("failed") > 0


@final
class Diverged(Section):
    """Trials without a result, which are results of their arm."""

    part = Part.RESULTS
    after = "arms"
    subject = "arms"
    heading = "What diverged"
    needs_results = False

    @cached_property
    def counts(self) -> pl.DataFrame:
        """A row for each arm (search.analysis.arms.divergence.count_lost)."""
        return count_lost(self.data.trials)

    @property
    def applies(self) -> bool:
        return self.counts.filter(_SOME).height > 0

    def findings(self) -> Iterable[str]:
        for row in self.counts.filter(_SOME).iter_rows(named=True):
            kinds = [f"{number(row[kind])} {kind}" for kind in ("diverged", "failed") if row[kind]]
            first, last = row["first"], row["last"]
            when = f"at step {number(first)}" if first == last else f"between steps {number(first)} and {number(last)}"
            yield f"Of {number(row['ended'])} trials of {row['arm']} {' and '.join(kinds)}, {when}."

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        columns = ("arm", "ended", "diverged", "failed", "first", "last")
        rows = [[arm, *map(number, counts)] for arm, *counts in self.counts.select(columns).rows()]
        header = ["Arm", "Ended", "Diverged", "Failed", "First at step", "Last at step"]
        words = "Trials that ended without a result, of all that ended"
        yield Table(caption=words, header=header, rows=rows)
        settings = compare_settings(self.data.trials).rows()
        if settings:
            rows = [[arm, name, _range(*ends[:2]), _range(*ends[2:])] for arm, name, *ends in settings]
            words = "Settings of the trials that diverged or failed, and of those that finished"
            header = ["Arm", "Setting", "Diverged or failed", "Finished"]
            yield Table(caption=words, header=header, rows=rows, labels=2)
        lost = list_lost(self.data.trials)
        shown: list[list[str]] = []
        for row in lost.head(_MOST_ROWS).iter_rows(named=True):
            known = json.loads(row["settings"]).items()
            text = ", ".join(f"{path} {parameter(value)}" for path, value in known)
            numbers = (number(row[name]) for name in ("seed", "number", "steps"))
            shown.append([row["arm"], *numbers, row["error"] or row["state"], text or MISSING])
        header = ["Arm", "Seed", "Trial", "Step", "Why", "Settings"]
        yield Table(caption="Trials that diverged or failed", header=header, rows=shown, labels=6)
        if lost.height > _MOST_ROWS:
            yield Paragraph(text=f"These are the first {_MOST_ROWS} of {number(lost.height)}.")


def _range(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return MISSING
    return number(least) if least == most else f"{number(least)} to {number(most)}"
