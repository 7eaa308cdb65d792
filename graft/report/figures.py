"""The figures of a study's report. Each is drawn where its data makes sense, which the caller has seen to."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from matplotlib.axes import Axes

from graft.report.drawing import (
    dodges,
    fit_scale,
    grid,
    key,
    label_decades,
    label_doublings,
    label_percents,
    legend,
    look,
    on_doublings,
    styled,
    to_svg,
)
from graft.report.selection import is_series, portion_title, portions_of, series_label, shown, variants_of
from search.analysis.summary import StudySummary

_MOST_MARKS = 2000
"""Points of a panel beyond which they are an image within the figure."""


def groups_figure(summary: StudySummary) -> str:
    """Best metrics per group against the generalisation gap, or, where that does not vary, the groups in order."""
    by_gap = summary.gap_trend["gap"].n_unique() > 1
    frame = summary.group_statistics
    series, portions = shown(summary), portions_of(frame)
    with styled():
        figure, panels = grid(len(series), len(portions))
        for row, one in enumerate(series):
            values = frame.filter(is_series(one), pl.col("portion").is_in(portions))
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = values.filter(pl.col("portion") == portion)
                if by_gap:
                    _groups_by_gap(axes, cells, summary.gap_trend.filter(is_series(one), pl.col("portion") == portion))
                else:
                    _groups_in_order(axes, cells)
                if row == 0:
                    axes.set_title(portion_title(portion, portions[portion]))
            panels[row, 0].set_ylabel(series_label(one))
            fit_scale(panels[row, 0], values["value"].to_list())
        for axes in panels[-1]:
            axes.set_xlabel("generalisation gap" if by_gap else "groups, from good to bad")
        legend(figure, [key(variant) for variant in variants_of(frame)])
        return to_svg(figure, "figure1")


def _groups_by_gap(axes: Axes, cells: pl.DataFrame, trend: pl.DataFrame) -> None:
    variants = variants_of(cells)
    few = cells.height <= 24
    for variant, shift in zip(variants, dodges(len(variants)), strict=True):
        seen = look(variant)
        own = cells.filter(pl.col("variant") == variant)
        places = [
            on_doublings(gap) + shift + 0.1 * ((number * 0.618) % 1 - 0.5)  # groups of one gap beside one another
            for gap, number in own.select("gap", "group_number").iter_rows()
        ]
        axes.scatter(
            places,
            own["value"].to_list(),
            s=34 if few else 12,
            alpha=0.9 if few else 0.35,
            color=seen.colour,
            marker=seen.marker,
            linewidths=0,
            rasterized=own.height > _MOST_MARKS,
        )
        _trend_line(axes, trend.filter(pl.col("variant") == variant), seen.colour, seen.marker, shift)
    label_doublings(axes.xaxis, max(cells["gap"].to_list()))


def _trend_line(axes: Axes, trend: pl.DataFrame, colour: str, marker: str, shift: float) -> None:
    places = [on_doublings(gap) + shift for gap in trend["gap"]]
    axes.plot(places, trend["median"].to_list(), color=colour, linewidth=1.8, zorder=3)
    sure = trend.with_columns(place=pl.Series(places, dtype=pl.Float64)).drop_nulls("low")
    axes.vlines(sure["place"].to_list(), sure["low"].to_list(), sure["high"].to_list(), color=colour, linewidth=3)


def _groups_in_order(axes: Axes, cells: pl.DataFrame) -> None:
    first = variants_of(cells)[0]
    ranking = cells.filter(pl.col("variant") == first).sort(pl.col("value") * pl.col("sign"))["group_number"].to_list()
    place = {number: index for index, number in enumerate(ranking, 1)}
    for variant in variants_of(cells):
        seen = look(variant)
        own = cells.filter(pl.col("variant") == variant, pl.col("group_number").is_in(ranking))
        axes.scatter(
            [place[number] for number in own["group_number"]],
            own["value"].to_list(),
            s=34 if len(ranking) <= 24 else 12,
            color=seen.colour,
            marker=seen.marker,
            linewidths=0,
            rasterized=own.height > _MOST_MARKS,
        )


def distribution_figure(summary: StudySummary, number: int) -> str:
    """The share of trials that are at least as good as a value, for each metric."""
    series = shown(summary)
    frame = summary.curves
    with styled():
        figure, panels = grid(1, len(series))
        for axes, one in zip(panels[0], series, strict=True):
            cells = frame.filter(is_series(one))
            for variant in variants_of(cells):
                own, seen = cells.filter(pl.col("variant") == variant), look(variant)
                axes.step(
                    own["value"].to_list(), own["share"].to_list(), color=seen.colour, linewidth=1.8, where="post"
                )
            axes.set_xlabel(series_label(one))
            _fit_values(axes, cells["value"].to_list())
        panels[0, 0].set_yscale("log")
        panels[0, 0].set_ylabel("share of trials at least as good")
        label_percents(panels[0, 0].yaxis)
        legend(figure, [key(variant) for variant in variants_of(frame)])
        return to_svg(figure, f"figure{number}")


def _fit_values(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) > 10 * min(values):
        axes.set_xscale("log")
        label_decades(axes.xaxis, max(values) / min(values))
