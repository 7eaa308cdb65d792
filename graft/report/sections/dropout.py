"""Dropout rates of the best trials (paper 003, Figure 2), for studies that sample them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import (
    SOFT,
    dodges,
    figure_style,
    grid,
    key,
    label_doublings,
    legend,
    look,
    on_doublings,
    to_svg,
)
from graft.report.rendering.series import portion_title, portions_of, variants_of
from graft.report.sections import FigureNumbers, Part, Section, left_out
from graft.report.sections._group_measures import MEASURES, measure_groups
from search.analysis.study.dropout import DropoutRates, average_dropout

_LABELS = {
    "width_multiplier": "embedding dimension multiplier",
    "value_coefficient": "value dimension coefficient",
}
_FORMULAS = {
    "width_multiplier": "embedding dimension multiplier d / (v − 1)",
    "value_coefficient": "value dimension coefficient (d_v − v + 1) / (d − v + 1), 0 where d = v − 1",
}


@final
class Dropout(Section):
    """A figure over the gap for each measure of extra dimensions, or, without gaps, by portions."""

    part = Part.FIGURES
    after = "best_per_group"
    subject = "trials"
    figures = len(MEASURES)

    @cached_property
    def rates(self) -> DropoutRates:
        """The rates of the best trials (search.analysis.study.dropout)."""
        sampled, groups = self.data.parameters(".*dropout"), measure_groups(self.data.groups)
        return average_dropout(sampled, self.data.scores.of_objective(), groups, "gap", MEASURES)

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        dropout, first, second = self.rates, figures.own, figures.own + 1
        if dropout.pooled.is_empty():
            what = f"Figures {first} and {second}, dropout of the best trials"
            yield left_out(what, "The study samples no dropout rate.")
        elif dropout.trend["gap"].n_unique() > 1:
            for number, name in enumerate(MEASURES, first):
                caption = (
                    "Mean dropout rates of the best trials of each group by generalisation gap, for groups up to the "
                    f"median {_FORMULAS[name]}, and above it. Points are means over groups of gap 0, 1–2, 3–6, 7–14 "
                    "and so on, bars 95 % intervals over five groups or more."
                )
                yield Picture(number=number, caption=caption, svg=_draw_by_gap(dropout, name, number))
        else:
            within = "in their groups, averaged over groups" if self.data.groups.height > 1 else "among all"
            caption = (
                f"Mean dropout rates of the best trials {within}, with the number of trials in each portion. "
                "Bars are 95 % intervals."
            )
            yield Picture(number=first, caption=caption, svg=_draw_by_portion(dropout.pooled, first))
            what = f"Figure {second}, dropout by generalisation gap and extra dimensions"
            yield left_out(what, "It needs groups of different gaps, with a known vocabulary, width and value width.")


def _draw_by_gap(dropout: DropoutRates, measure: str, number: int) -> str:
    """Draw rates of top portions over the gap, apart for few and many extra dimensions."""
    frame = dropout.trend.filter(pl.col("measure") == measure)
    rates = frame["dropout"].unique().sort().to_list()
    portions = portions_of(dropout.rates)
    portions.pop("all", None)
    with figure_style():
        figure, panels = grid(len(rates), len(portions))
        for row, rate in enumerate(rates):
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = frame.filter(pl.col("dropout") == rate)
                _draw_all_trials(axes, cells.filter(pl.col("portion") == "all"))
                _draw_lines(axes, cells.filter(pl.col("portion") == portion))
                label_doublings(axes.xaxis, max(frame["gap"].to_list()))
                if row == 0:
                    axes.set_title(portion_title(portion, portions[portion]))
            panels[row, 0].set_ylabel(_rate_label(rate))
            _start_at_zero(panels[row, 0])
        for axes in panels[-1]:
            axes.set_xlabel("generalisation gap")
        keys = [key(variant) for variant in variants_of(frame)]
        keys.append(Line2D([], [], color=SOFT, linewidth=1.2, linestyle=":", label="all trials"))
        if frame["extra"].n_unique() > 1:
            for size, face, line in (("larger", SOFT, "-"), ("smaller", "white", "--")):
                looks: dict[str, Any] = {"marker": "o", "markerfacecolor": face, "linestyle": line}
                keys.append(Line2D([], [], color=SOFT, label=f"{size} {_LABELS[measure]}", **looks))
        legend(figure, keys)
        return to_svg(figure, f"figure{number}")


def _draw_lines(axes: Axes, cells: pl.DataFrame) -> None:
    lines = cells.select("variant", "extra").unique().sort("extra", "variant").rows()
    for (variant, extra), shift in zip(lines, dodges(len(lines)), strict=True):
        rows, seen = cells.filter(variant=variant, extra=extra), look(variant)
        axes.errorbar(
            [on_doublings(gap) + shift for gap in rows["gap"]],
            rows["rate"].to_list(),
            yerr=rows["margin"].fill_null(0).to_list(),
            color=seen.colour,
            marker=seen.marker,
            markersize=6,
            markerfacecolor=seen.colour if extra == "more" else "white",
            linestyle="-" if extra == "more" else "--",
            linewidth=1.6,
            elinewidth=1.1,
        )


def _draw_all_trials(axes: Axes, cells: pl.DataFrame) -> None:
    """Draw the mean rate of all trials, the line to compare the chosen trials with."""
    rows = cells.filter(pl.col("variant") == variants_of(cells)[0])
    for extra in rows["extra"].unique().sort():
        line = rows.filter(pl.col("extra") == extra)
        xs = [on_doublings(gap) for gap in line["gap"]]
        axes.plot(xs, line["rate"].to_list(), color=SOFT, linewidth=1.2, linestyle=":", zorder=1)


def _draw_by_portion(frame: pl.DataFrame, number: int) -> str:
    """Draw mean dropout rates of ever better portions of the trials."""
    rates = frame["dropout"].unique().sort().to_list()
    counted = dict(reversed(portions_of(frame).items()))
    portions = list(counted)
    with figure_style():
        figure, panels = grid(1, len(rates))
        for axes, rate in zip(panels[0], rates, strict=True):
            cells = frame.filter(pl.col("dropout") == rate, pl.col("portion").is_in(portions))
            variants = variants_of(cells)
            for variant, shift in zip(variants, dodges(len(variants)), strict=True):
                rows, seen = cells.filter(pl.col("variant") == variant), look(variant)
                axes.errorbar(
                    [portions.index(portion) + shift for portion in rows["portion"]],
                    rows["rate"].to_list(),
                    yerr=rows["margin"].fill_null(0).to_list(),
                    color=seen.colour,
                    marker=seen.marker,
                    markersize=7,
                    linewidth=1.6,
                )
            names = [f"{portion}\n({n:,} trials)" if n > 1 else "best trial" for portion, n in counted.items()]
            axes.set_xticks(range(len(portions)), names)
            axes.set_title(_rate_label(rate))
        panels[0, 0].set_ylabel("mean rate")
        _start_at_zero(panels[0, 0])
        legend(figure, [key(variant) for variant in variants_of(frame)])
        return to_svg(figure, f"figure{number}")


def _start_at_zero(axes: Axes) -> None:
    """Start an axis a little below 0, so that the markers of rates of 0 are whole."""
    top = max(axes.get_ylim()[1], 0.01)
    axes.set_ylim(-0.04 * top, top)


def _rate_label(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")
