"""The best metrics of each group by generalisation gap (paper 003, Figure 1), or in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import (
    Look,
    dodges,
    figure_style,
    fit_scale,
    grid,
    key,
    label_doublings,
    legend,
    look,
    on_doublings,
    to_svg,
)
from graft.report.rendering.series import (
    ALL_ZERO,
    Series,
    drawn_series,
    is_series,
    portion_title,
    portions_of,
    say_series,
    series_label,
    variants_of,
)
from graft.report.sections import FigureNumbers, Part, Section, left_out
from graft.report.sections._group_measures import measure_groups
from search.analysis.study.groups import trend

_MOST_MARKS = 2000
"""Points of a panel beyond which they are an image within the figure."""


@final
class BestPerGroup(Section):
    """A row of panels for each metric, a column for each portion of the trials."""

    part = Part.FIGURES
    after = "diagnostics"
    subject = "trials"
    figures = 1

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """The top-k statistics of each group, with its gap."""
        gaps = measure_groups(self.data.groups).select("group_number", "gap")
        return self.data.group_statistics.join(gaps, on="group_number", maintain_order="left")

    @cached_property
    def medians(self) -> pl.DataFrame:
        """Medians over groups of like gap (search.analysis.study.groups.trend)."""
        return trend(self.statistics, "gap")

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        groups, series = self.data.groups, drawn_series(self.data.statistics)
        what = f"Figure {figures.own}, the best metrics per group"
        if groups.height < 2:
            reason = "The trials form one group" if groups.height else "No group has several trials"
            yield left_out(what, f"{reason}; Figure {figures.sections['distribution']} shows them all.")
            return
        if not series:
            yield left_out(what, ALL_ZERO)
            return
        medians = self.medians if self.medians["gap"].n_unique() > 1 else None
        if medians is not None:
            words = (
                "; lines join the medians over groups of gap 0, 1–2, 3–6, 7–14 and so on, thick bars their 95 % "
                "intervals"
            )
        else:
            words = ", in each panel in the order of their raw values"
        caption = (
            "Best metrics per group: the best trial and the means of the best portions of each group. Points are "
            f"groups{words}.{say_series(self.data.statistics, series)}"
        )
        svg = _draw(self.statistics, medians, series, figures.own)
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(statistics: pl.DataFrame, medians: pl.DataFrame | None, series: Sequence[Series], number: int) -> str:
    """Return the figure; without medians over groups of like gap, groups stand in their order."""
    portions = portions_of(statistics)
    with figure_style():
        figure, panels = grid(len(series), len(portions))
        for row, metric in enumerate(series):
            values = statistics.filter(is_series(metric), pl.col("portion").is_in(portions))
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = values.filter(pl.col("portion") == portion)
                if medians is None:
                    _draw_in_order(axes, cells)
                else:
                    lines = medians.filter(is_series(metric), pl.col("portion") == portion)
                    _draw_by_gap(axes, cells, lines)
                if row == 0:
                    axes.set_title(portion_title(portion, portions[portion]))
            panels[row, 0].set_ylabel(series_label(metric))
            fit_scale(panels[row, 0], values["value"].to_list())
        for axes in panels[-1]:
            axes.set_xlabel("groups, from good to bad" if medians is None else "generalisation gap")
        legend(figure, [key(variant) for variant in variants_of(statistics)])
        return to_svg(figure, f"figure{number}")


def _draw_by_gap(axes: Axes, cells: pl.DataFrame, medians: pl.DataFrame) -> None:
    variants = variants_of(cells)
    few = cells.height <= 24
    for variant, shift in zip(variants, dodges(len(variants)), strict=True):
        seen = look(variant)
        rows = cells.filter(pl.col("variant") == variant)
        # Groups of one gap stand beside one another.
        xs = [
            on_doublings(gap) + shift + 0.1 * ((number * 0.618) % 1 - 0.5)
            for gap, number in rows.select("gap", "group_number").iter_rows()
        ]
        _draw_marks(axes, xs, rows, seen, few=few, alpha=0.9 if few else 0.35)
        line = medians.filter(pl.col("variant") == variant)
        xs = [on_doublings(gap) + shift for gap in line["gap"]]
        axes.plot(xs, line["median"].to_list(), color=seen.colour, linewidth=1.8, zorder=3)
        known = line.with_columns(x=pl.Series(xs, dtype=pl.Float64)).drop_nulls("low")
        at, low, high = (known[name].to_list() for name in ("x", "low", "high"))
        axes.vlines(at, low, high, color=seen.colour, linewidth=3)
    label_doublings(axes.xaxis, max(cells["gap"].to_list()))


def _draw_in_order(axes: Axes, cells: pl.DataFrame) -> None:
    first = variants_of(cells)[0]
    ranked = cells.filter(pl.col("variant") == first).sort(pl.col("value") * pl.col("sign"))
    position = {number: index for index, number in enumerate(ranked["group_number"], 1)}
    for variant in variants_of(cells):
        rows = cells.filter(pl.col("variant") == variant, pl.col("group_number").is_in(list(position)))
        xs = [position[number] for number in rows["group_number"]]
        _draw_marks(axes, xs, rows, look(variant), few=len(position) <= 24, alpha=None)


def _draw_marks(
    axes: Axes, xs: Sequence[float], rows: pl.DataFrame, seen: Look, *, few: bool, alpha: float | None
) -> None:
    axes.scatter(
        xs,
        rows["value"].to_list(),
        s=34 if few else 12,
        alpha=alpha,
        color=seen.colour,
        marker=seen.marker,
        linewidths=0,
        rasterized=rows.height > _MOST_MARKS,
    )
