"""A section of a study's report: when it applies, and what it shows of which data."""

from __future__ import annotations

from collections.abc import Iterable

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import number
from graft.report.sections import FigureNumbers, Part, Section


class Example(Section):
    """The number of trials in each state."""

    part = Part.RESULTS
    after = "diagnostics"  # the section that it follows
    heading = "States"

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        # self.data has the study's frames, as trials, metrics and scores.all() (StudyData).
        counted = self.data.trials.group_by("state").len().sort("state")
        rows = [[state, number(count)] for state, count in counted.rows()]
        yield Table(caption="Trials by state", header=["State", "Trials"], rows=rows)
        yield Paragraph(text=f"{number(self.data.ended.height)} of them have a result.")
