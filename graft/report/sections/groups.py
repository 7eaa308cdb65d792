"""The groups of a study, their sizes and their best trials."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import number
from graft.report.sections import FigureNumbers, Part, Section
from graft.report.sections._group_measures import measure_groups

_MOST_GROUPS = 300


@final
class Groups(Section):
    """A row for each group."""

    part = Part.DETAILS
    after = "optimal_temperature"
    subject = "trials"
    heading = "Groups"

    @property
    def applies(self) -> bool:
        return self.data.groups.height >= 2

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        every = measure_groups(self.data.groups)
        groups = every.head(_MOST_GROUPS)
        if groups.height < every.height:
            yield Paragraph(text=f"The table has the first {_MOST_GROUPS} of {number(every.height)} groups.")
        sizes = [name for name in groups.columns[1:] if groups[name].null_count() < groups.height]
        statistics = self.data.group_statistics
        first = statistics.select("name", "condition").head(1)
        scores = statistics.join(first, on=first.columns, how="semi", maintain_order="left")
        columns = scores.select("variant", "portion").unique(maintain_order=True).rows()
        labels = [f"{scores['name'][0]} {variant} {portion}" for variant, portion in columns]
        cells: dict[int, dict[tuple[str, ...], float | None]] = {}
        for group, *column, value in scores.select("group_number", "variant", "portion", "value").rows():
            cells.setdefault(group, {})[tuple(column)] = value
        rows: list[list[str]] = []
        for group in groups.iter_rows(named=True):
            known = cells.get(group["group_number"])
            texts = [number(known.get(column)) for column in columns] if known else []
            rows.append([str(group["group_number"]), *(number(group[name]) for name in sizes), *texts])
        header = ["group", *(name.replace("_", " ") for name in sizes), *labels]
        yield Table(caption=f"{len(rows)} groups", header=header, rows=rows, folded=len(rows) > 12)
