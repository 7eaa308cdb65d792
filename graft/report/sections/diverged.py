"""What diverged: of each arm of an experiment how many trials, when, and with which settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, final

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
    needs_results = False

    @cached_property
    def counts(self) -> pl.DataFrame:
        """See search.analysis.arms.divergence.count_lost."""
        return count_lost(self.data.trials)

    @property
    def applies(self) -> bool:
        return self.counts.filter(_SOME).height > 0

    @property
    def title(self) -> str:
        return "What diverged"

    def findings(self) -> Iterable[str]:
        for row in self.counts.filter(_SOME).iter_rows(named=True):
            kinds = [f"{number(row[state])} {state}" for state in ("diverged", "failed") if row[state]]
            first, last = row["first"], row["last"]
            when = f"at step {number(first)}" if first == last else f"between steps {number(first)} and {number(last)}"
            yield f"Of {number(row['ended'])} trials of {row['arm']} {' and '.join(kinds)}, {when}."

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        rows = [
            [row["arm"], *(number(row[name]) for name in ("ended", "diverged", "failed", "first", "last"))]
            for row in self.counts.iter_rows(named=True)
        ]
        header = ["Arm", "Ended", "Diverged", "Failed", "First at step", "Last at step"]
        yield Table(caption="Trials that ended without a result, of all that ended", header=header, rows=rows)
        settings = compare_settings(self.data.trials)
        if settings.height:
            ranges = [
                [arm, setting, _range(lost_least, lost_most), _range(finished_least, finished_most)]
                for arm, setting, lost_least, lost_most, finished_least, finished_most in settings.rows()
            ]
            words = "Settings of the trials that diverged or failed, and of those that finished"
            columns = ["Arm", "Setting", "Diverged or failed", "Finished"]
            yield Table(caption=words, header=columns, rows=ranges, labels=2)
        lost = list_lost(self.data.trials)
        shown = [_describe(row) for row in lost.head(_MOST_ROWS).iter_rows(named=True)]
        caption = "Trials that diverged or failed"
        yield Table(caption=caption, header=["Arm", "Seed", "Trial", "Step", "Why", "Settings"], rows=shown, labels=6)
        if lost.height > _MOST_ROWS:
            yield Paragraph(text=f"These are the first {_MOST_ROWS} of {number(lost.height)}.")


def _range(least: float | None, most: float | None) -> str:
    if least is None or most is None:
        return MISSING
    return number(least) if least == most else f"{number(least)} to {number(most)}"


def _describe(row: Mapping[str, Any]) -> list[str]:
    settings = ", ".join(f"{path} {parameter(value)}" for path, value in json.loads(row["settings"]).items())
    why = row["error"] or row["state"]
    return [row["arm"], number(row["seed"]), number(row["number"]), number(row["steps"]), why, settings or MISSING]
