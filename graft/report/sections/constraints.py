"""The constraints of a space that its trials broke."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Table
from graft.report.rendering.formatting import number
from graft.report.sections import FigureNumbers, Part, Section


@final
class Constraints(Section):
    """The number of trials that break each constraint; they are in no other table or figure."""

    part = Part.RESULTS
    after = "diverged"
    subject = "trials"
    heading = "Constraints"
    needs_results = False

    @property
    def applies(self) -> bool:
        return self._known.height > 0

    @cached_property
    def _known(self) -> pl.DataFrame:
        """The trials that are known to be feasible or not."""
        trials = self.data.trials
        return trials.drop_nulls("feasible") if "feasible" in trials.columns else trials.clear()

    def findings(self) -> Iterable[str]:
        feasible = int(self._known["feasible"].sum())
        yield (
            f"{number(feasible)} of {number(self._known.height)} trials with a result are feasible; the others are "
            "left out of everything that is ranked or averaged here."
        )

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        held, broken = Counter[str](), Counter[str]()
        for text in self._known["constraints"].cast(pl.String):
            for constraint, excess in json.loads(text).items():
                held[constraint] += 1
                broken[constraint] += excess is None or excess > 0
        rows = [[name, number(held[name]), number(broken[name])] for name in sorted(held)]
        header = ["Constraint", "Trials that it is for", "Trials that break it"]
        yield Table(caption="Constraints and the trials that break them", header=header, rows=rows)
