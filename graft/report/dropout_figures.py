"""The figures of dropout rates: how much of it the best trials use."""

from __future__ import annotations

from typing import Literal

import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graft.report.drawing import SOFT, dodges, grid, key, label_doublings, legend, look, on_doublings, styled, to_svg
from graft.report.selection import portion_name, portion_title, portions_of, variants_of
from search.analysis.summary import StudySummary

_MEASURES = {
    "width_multiplier": "embedding dimension multiplier",
    "value_coefficient": "value dimension coefficient",
}


def dropout_by_gap_figure(summary: StudySummary, measure: str, number: int) -> str:
    """Mean dropout rates of top portions over the gap, apart for groups with fewer and with more extra dimensions."""
    frame = summary.dropout.trend.filter(pl.col("measure") == measure)
    rates = frame["dropout"].unique().sort().to_list()
    portions = {portion: most for portion, most in portions_of(summary.dropout.rates).items() if portion != "all"}
    with styled():
        figure, panels = grid(len(rates), len(portions))
        for row, rate in enumerate(rates):
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = frame.filter(pl.col("dropout") == rate)
                _all_trials(axes, cells.filter(pl.col("portion") == "all"))
                _dropout_lines(axes, cells.filter(pl.col("portion") == portion))
                label_doublings(axes.xaxis, max(frame["gap"].to_list()))
                if row == 0:
                    axes.set_title(portion_title(portion, portions[portion]))
            panels[row, 0].set_ylabel(_rate_label(rate))
            _rates_from_zero(panels[row, 0])
        for axes in panels[-1]:
            axes.set_xlabel("generalisation gap")
        legend(figure, _dropout_keys(frame, _MEASURES[measure]))
        return to_svg(figure, f"figure{number}")


def _dropout_lines(axes: Axes, cells: pl.DataFrame) -> None:
    lines = cells.select("variant", "extra").unique().sort("extra", "variant").rows()
    for (variant, extra), shift in zip(lines, dodges(len(lines)), strict=True):
        own, seen = cells.filter(pl.col("variant") == variant, pl.col("extra") == extra), look(variant)
        axes.errorbar(
            [on_doublings(gap) + shift for gap in own["gap"]],
            own["rate"].to_list(),
            yerr=own["margin"].fill_null(0).to_list(),
            color=seen.colour,
            marker=seen.marker,
            markersize=6,
            markerfacecolor=seen.colour if extra == "more" else "white",
            linestyle="-" if extra == "more" else "--",
            linewidth=1.6,
            elinewidth=1.1,
        )


def _all_trials(axes: Axes, cells: pl.DataFrame) -> None:
    """What a rate is without choosing trials: the line to compare the others with."""
    own = cells.filter(pl.col("variant") == variants_of(cells)[0])
    for extra in own["extra"].unique().sort():
        line = own.filter(pl.col("extra") == extra)
        places = [on_doublings(gap) for gap in line["gap"]]
        axes.plot(places, line["rate"].to_list(), color=SOFT, linewidth=1.2, linestyle=":", zorder=1)


def _dropout_keys(frame: pl.DataFrame, measure: str) -> list[Line2D]:
    def half(label: str, face: str, line: Literal["-", "--"]) -> Line2D:
        return Line2D([], [], color=SOFT, marker="o", markerfacecolor=face, linestyle=line, label=label)

    keys = [key(variant) for variant in variants_of(frame)]
    keys.append(Line2D([], [], color=SOFT, linewidth=1.2, linestyle=":", label="all trials"))
    if frame["extra"].n_unique() > 1:
        keys += [half(f"larger {measure}", SOFT, "-"), half(f"smaller {measure}", "white", "--")]
    return keys


def dropout_by_portion_figure(summary: StudySummary, number: int) -> str:
    """Mean dropout rates of ever better portions of the trials."""
    frame = summary.dropout.pooled
    rates = frame["dropout"].unique().sort().to_list()
    counted = portions_of(frame)
    portions = list(reversed(counted))
    with styled():
        figure, panels = grid(1, len(rates))
        for axes, rate in zip(panels[0], rates, strict=True):
            cells = frame.filter(pl.col("dropout") == rate, pl.col("portion").is_in(portions))
            for variant, shift in zip(variants_of(cells), dodges(len(variants_of(cells))), strict=True):
                own, seen = cells.filter(pl.col("variant") == variant), look(variant)
                axes.errorbar(
                    [portions.index(portion) + shift for portion in own["portion"]],
                    own["rate"].to_list(),
                    yerr=own["margin"].fill_null(0).to_list(),
                    color=seen.colour,
                    marker=seen.marker,
                    markersize=7,
                    linewidth=1.6,
                )
            axes.set_xticks(range(len(portions)), [portion_name(portion, counted[portion]) for portion in portions])
            axes.set_title(_rate_label(rate))
        panels[0, 0].set_ylabel("mean rate")
        _rates_from_zero(panels[0, 0])
        legend(figure, [key(variant) for variant in variants_of(frame)])
        return to_svg(figure, f"figure{number}")


def _rates_from_zero(axes: Axes) -> None:
    """An axis that starts a little below 0, so that the markers of rates of 0 are whole."""
    top = max(axes.get_ylim()[1], 0.01)
    axes.set_ylim(-0.04 * top, top)


def _rate_label(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")
