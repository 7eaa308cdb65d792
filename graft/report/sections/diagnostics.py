"""Diagnostics of attention, which are neither good nor bad: their means, and no ranking."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import final

import polars as pl

from graft.plugins.families import member_names
from graft.report.rendering.document import Block, Table
from graft.report.rendering.formatting import number
from graft.report.rendering.series import series_label
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.study.scores import Reserved, mean_last


class _DiagnosticNames(Collection[str]):
    """The names of all diagnostics, read when asked for: a study may have some of its own."""

    def __iter__(self) -> Iterator[str]:
        return iter(member_names("diagnostic"))

    def __len__(self) -> int:
        return len(member_names("diagnostic"))

    def __contains__(self, name: object) -> bool:
        return name in member_names("diagnostic")


_RESERVED = Reserved(names=_DiagnosticNames())


@final
class Diagnostics(Section):
    """The mean of each diagnostic over trials."""

    part = Part.RESULTS
    after = "trained_scorer"
    reserved = _RESERVED

    @cached_property
    def means(self) -> pl.DataFrame:
        """name, condition, variant, trials, value: means of the last validations."""
        return mean_last(self.data.scores.of_reserved(_RESERVED))

    @property
    def applies(self) -> bool:
        return not self.means.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        rows = [
            [series_label((name, condition)), variant, number(trials), number(value)]
            for name, condition, variant, trials, value in self.means.rows()
        ]
        caption = "Diagnostics of attention, each trial with its last validation"
        header = ["Diagnostic", "Variant", "Trials", "Mean"]
        yield Table(caption=caption, header=header, rows=rows, labels=2, folded=len(rows) > 12)
