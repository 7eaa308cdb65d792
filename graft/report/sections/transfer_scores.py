"""The objective of each target by source, as tables (paper 002, Tables 3 and 5 to 7), and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Table
from graft.report.rendering.formatting import MISSING, number, with_margin
from graft.report.sections import FigureNumbers, Part
from graft.report.sections._transfers import TransferSection
from search.analysis.metrics import range_of
from search.analysis.statistics.intervals import mean_with_interval


@final
class TransferScores(TransferSection):
    """Rows are sources, columns targets: the mean objective over pairs, and the seconds."""

    part = Part.RESULTS
    after = "averaged_parameters"

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        values = self.data.ended.select("number", value="objective")
        pairs = self.stage_two.join(values, on="number").group_by("source", "target")
        means = pairs.agg(**mean_with_interval()).select("source", "target", "mean", "high")
        cells: dict[tuple[str, str], str] = {}
        for source, target, mean, high in means.iter_rows():
            margin = None if high is None else high - mean
            bounds = range_of(self.data.transfer_tasks[target].objective.metric)
            cells[source, target] = with_margin(mean, margin, bounds)
        wanted = {str(self.data.transfer_tasks[target].objective) for target in self.targets}
        label = wanted.pop() if len(wanted) == 1 else "the target's objective"
        caption = f"{label} of each source on each target: means over pairs with half of Student's 95 % interval"
        yield self._table(caption, cells)
        if self.data.load_seconds is None:
            return
        steps = self.data.ended.select("number", "steps")
        timed = self.stage_two.join(self.data.load_seconds(), on="number").join(steps, on="number")
        thousand = 1000 * (pl.col("seconds") / pl.col("steps")).median()
        known = timed.drop_nulls("seconds").filter(pl.col("steps") > 0)
        medians = known.group_by("source", "target").agg(thousand).iter_rows()
        times = {(source, target): number(seconds) for source, target, seconds in medians}
        if times:
            caption = (
                "Seconds for 1,000 optimizer steps: the median over pairs of a trial's time from its start to its end. "
                "The trials of a pack train together, and share it"
            )
            yield self._table(caption, times)

    def _table(self, caption: str, cells: Mapping[tuple[str, str], str]) -> Table:
        rows = [[source, *(cells.get((source, target), MISSING) for target in self.targets)] for source in self.sources]
        return Table(caption=caption, header=["Source", *self.targets], rows=rows, folded=len(rows) > 24)
