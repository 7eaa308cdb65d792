"""Averaged parameters (EMA, BEMA) against raw ones, over all trials and per group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.drawing import look
from graft.report.rendering.formatting import MISSING, number, percent, percent_with_margin, with_margin
from graft.report.rendering.series import series_label
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.metrics import range_of
from search.analysis.statistics.intervals import FEWEST_OF_MEDIAN
from search.analysis.study.groups import compare_within_groups
from search.analysis.study.top_k import FEWEST, FEWEST_BEST, PORTIONS

_ARROWS = {1: "↓", -1: "↑"}


@final
class AveragedParameters(Section):
    """The metrics of the best trials for each variant of their parameters, against the raw one."""

    part = Part.RESULTS
    after = "prior"
    subject = "trials"
    notes = (
        "Finished and pruned trials count; diverged, failed and unfinished ones do not. A trial's best validation is "
        "the best of those that were kept. The best 1 % and 10 % are rounded down to whole trials, and have at least "
        "one.",
        "Changes are (averaged − raw) / |raw|. Raw and averaged parameters are ranked on their own, so that the best "
        "trials of the two need not be the same ones.",
        "Intervals are Student's, from the influence of each trial on the mean, and take the groups as given; those "
        "of a change use that both variants come from the same trials. Means of fewer than "
        f"{FEWEST_BEST} best trials have no interval, nor have changes of fewer than {FEWEST}. Medians over groups "
        f"have order-statistic intervals, and over fewer than {FEWEST_OF_MEDIAN} groups none. The interval of a share "
        "or a probability is cut at 0 and 1.",
    )

    @property
    def title(self) -> str:
        return "Averaged against raw parameters" if self._has_variants else "Metrics"

    @property
    def _has_variants(self) -> bool:
        return self.data.statistics["variant"].n_unique() > 1

    def findings(self) -> Iterable[str]:
        statistics = self.data.statistics
        metric = statistics.filter(pl.col("kept") == "best").head(1).select("name", "condition")
        compared = statistics.join(metric, on=["name", "condition"], maintain_order="left")
        # A change without an interval is in the table; it is no finding.
        compared = compared.filter(pl.col("kept") == "best", pl.col("change_margin").is_not_null())
        compared = compared.unique(["variant", "counted"], keep="first", maintain_order=True)
        for (variant,), rows in compared.group_by("variant", maintain_order=True):
            changes = [
                f"{percent_with_margin(row['change'], row['change_margin'])} ({row['portion']})"
                for row in rows.iter_rows(named=True)
            ]
            row = rows.row(0, named=True)
            yield (
                f"{look(str(variant)).label} changes {series_label((row['name'], row['condition']))} "
                f"({'less' if row['sign'] > 0 else 'more'} is better) against the raw parameters by "
                f"{', '.join(changes)}."
            )

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        if not self._has_variants:
            grid = figures.sections.get("averaging_grid")
            if grid:
                yield Paragraph(text=f"These are the raw parameters; their averages are a grid, Figure {grid}.")
            else:
                reason = "The study reports one variant of its parameters, so there is nothing to compare it with."
                yield Paragraph(text=reason)
        for kept, words in (("best", "best"), ("last", "last kept")):
            caption = (
                f"Best trials, each with its {words} validation; ↓ less or ↑ more is better; ± is half a 95 % interval"
            )
            statistics = self.data.statistics.filter(pl.col("kept") == kept)
            yield self._statistics_table(statistics, caption)
        if self.data.groups.height < 2:
            return
        rows = [
            [
                series_label((row["name"], row["condition"])),
                row["variant"],
                row["portion"],
                f"{row['better']} of {row['groups']}",
                percent(row["median"]),
                MISSING if row["low"] is None else f"{percent(row['low'])} to {percent(row['high'])}",
            ]
            for row in compare_within_groups(self.data.group_statistics).iter_rows(named=True)
        ]
        header = ["Metric", "Variant", "Portion", "Better than raw in groups"]
        header += ["Median change", "95 % interval"]
        if rows:
            yield Table(caption="The same comparison within each group", header=header, rows=rows, labels=3)

    def _statistics_table(self, statistics: pl.DataFrame, caption: str) -> Table:
        rows: list[list[str]] = []
        parts = statistics.group_by("name", "condition", "variant", maintain_order=True)
        for (name, condition, variant), cell in parts:
            by_portion = {row["portion"]: row for row in cell.iter_rows(named=True)}
            first, portions = by_portion["best"], [by_portion[portion] for portion in PORTIONS]
            series = series_label((str(name), str(condition)))
            row = [f"{series} {_ARROWS[first['sign']]}", str(variant), number(first["trials"])]
            bounds = range_of(str(name))
            row += [with_margin(portion["value"], portion["margin"], bounds) for portion in portions]
            if self._has_variants:
                row += [percent_with_margin(portion["change"], portion["change_margin"]) for portion in portions]
            rows.append(row)
        header = ["Metric", "Variant", "Trials", "Best", "Best 1 %", "Best 10 %"]
        changes = ["Change of best", "of best 1 %", "of best 10 %"] if self._has_variants else []
        return Table(caption=caption, header=[*header, *changes], rows=rows, labels=2)
