"""The figures of a study's report. Each is drawn where its data makes sense, which the caller has seen to."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from cli.report.drawing import (
    SOFT,
    STYLE,
    fit_scale,
    grid,
    key,
    label_decades,
    label_doublings,
    label_percents,
    legend,
    look,
    on_doublings,
    to_svg,
)
from search.summary import StudySummary

Series = tuple[str, str]
"""Name and condition of a metric."""

_MOST_SERIES = 3
_MOST_MARKS = 2000
"""Points of a panel beyond which they are an image within the figure."""

_MEASURES = {
    "width_multiplier": "embedding dimension multiplier",
    "value_coefficient": "value dimension coefficient",
}


def shown(summary: StudySummary) -> list[Series]:
    """The metrics that figures show: the objective's first, then plain ones, without those that are always 0."""
    known = summary.statistics.filter(pl.col("kept") == "best")
    series = known.group_by("name", "condition", maintain_order=True).agg(alive=(pl.col("value") != 0).any())
    wanted = series.with_row_index("place").filter((pl.col("place") == 0) | (pl.col("condition") == ""))
    return wanted.filter("alive").select("name", "condition").head(_MOST_SERIES).rows()


def series_label(series: Series) -> str:
    """A metric as an axis names it."""
    name, condition = series
    return f"{name}, {condition}" if condition else name


def groups_figure(summary: StudySummary) -> str:
    """Best metrics per group against the generalisation gap, or, where that does not vary, the groups in order."""
    by_gap = summary.gap_trend["gap"].n_unique() > 1
    frame = summary.group_statistics
    series, portions = shown(summary), distinct_portions(frame)
    with matplotlib.rc_context(STYLE):
        figure, panels = grid(len(series), len(portions))
        for row, one in enumerate(series):
            values = frame.filter(_is(one), pl.col("portion").is_in(portions))
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = values.filter(pl.col("portion") == portion)
                if by_gap:
                    _groups_by_gap(axes, cells, summary.gap_trend.filter(_is(one), pl.col("portion") == portion))
                else:
                    _groups_in_order(axes, cells)
                _title(axes, row, _portion_title(portion))
            panels[row, 0].set_ylabel(series_label(one))
            fit_scale(panels[row, 0], values["value"].to_list())
        for axes in panels[-1]:
            axes.set_xlabel("generalisation gap" if by_gap else "groups, from good to bad")
        legend(figure, [key(variant) for variant in _variants(frame)])
        return to_svg(figure, "figure1")


def _groups_by_gap(axes: Axes, cells: pl.DataFrame, trend: pl.DataFrame) -> None:
    variants = _variants(cells)
    few = cells.height <= 24
    for variant, shift in zip(variants, _dodges(len(variants), 0.16), strict=True):
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
    first = _variants(cells)[0]
    ranking = cells.filter(pl.col("variant") == first).sort(pl.col("value") * pl.col("sign"))["group_number"].to_list()
    place = {number: index for index, number in enumerate(ranking, 1)}
    for variant in _variants(cells):
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


def dropout_by_gap_figure(summary: StudySummary, measure: str, number: int) -> str:
    """Mean dropout rates of top portions over the gap, apart for groups with fewer and with more extra dimensions."""
    frame = summary.dropout.trend.filter(pl.col("measure") == measure)
    rates = frame["dropout"].unique(maintain_order=True).sort().to_list()
    portions = [portion for portion in distinct_portions(summary.dropout.rates) if portion != "all"]
    with matplotlib.rc_context(STYLE):
        figure, panels = grid(len(rates), len(portions))
        for row, rate in enumerate(rates):
            for column, portion in enumerate(portions):
                axes = panels[row, column]
                cells = frame.filter(pl.col("dropout") == rate)
                _all_trials(axes, cells.filter(pl.col("portion") == "all"))
                _dropout_lines(axes, cells.filter(pl.col("portion") == portion))
                label_doublings(axes.xaxis, max(frame["gap"].to_list()))
                _title(axes, row, _portion_title(portion))
            panels[row, 0].set_ylabel(_rate_label(rate))
            panels[row, 0].set_ylim(bottom=0)
        for axes in panels[-1]:
            axes.set_xlabel("generalisation gap")
        legend(figure, _dropout_keys(frame, _MEASURES[measure]))
        return to_svg(figure, f"figure{number}")


def _dropout_lines(axes: Axes, cells: pl.DataFrame) -> None:
    lines = cells.select("variant", "extra").unique().sort("extra", "variant").rows()
    for (variant, extra), shift in zip(lines, _dodges(len(lines), 0.16), strict=True):
        own, seen = cells.filter(pl.col("variant") == variant, pl.col("extra") == extra), look(variant)
        axes.errorbar(
            [on_doublings(gap) + shift for gap in own["gap"]],
            own["rate"].to_list(),
            yerr=own["margin"].fill_null(0).to_list(),
            color=seen.colour,
            marker=seen.marker,
            markersize=6,
            markerfacecolor=seen.colour if extra == "more" else "white",
            linestyle="-" if extra == "more" else (0, (4, 2)),
            linewidth=1.6,
            elinewidth=1.1,
        )


def _all_trials(axes: Axes, cells: pl.DataFrame) -> None:
    """What a rate is without choosing trials: the line to compare the others with."""
    own = cells.filter(pl.col("variant") == _variants(cells)[0])
    for extra in own["extra"].unique():
        line = own.filter(pl.col("extra") == extra)
        places = [on_doublings(gap) for gap in line["gap"]]
        axes.plot(places, line["rate"].to_list(), color=SOFT, linewidth=1.2, linestyle=":", zorder=1)


def _dropout_keys(frame: pl.DataFrame, measure: str) -> list[Line2D]:
    def half(label: str, face: str, line: str | tuple[int, tuple[int, int]]) -> Line2D:
        return Line2D([], [], color=SOFT, marker="o", markerfacecolor=face, linestyle=line, label=label)

    keys = [key(variant) for variant in _variants(frame)]
    keys.append(Line2D([], [], color=SOFT, linewidth=1.2, linestyle=":", label="all trials"))
    if frame["extra"].n_unique() > 1:
        keys += [half(f"larger {measure}", SOFT, "-"), half(f"smaller {measure}", "white", (0, (4, 2)))]
    return keys


def dropout_by_portion_figure(summary: StudySummary, number: int) -> str:
    """Mean dropout rates of ever better portions of the trials."""
    frame = summary.dropout.pooled
    rates = frame["dropout"].unique().sort().to_list()
    portions = list(reversed(distinct_portions(frame)))
    with matplotlib.rc_context(STYLE):
        figure, panels = grid(1, len(rates))
        for axes, rate in zip(panels[0], rates, strict=True):
            cells = frame.filter(pl.col("dropout") == rate, pl.col("portion").is_in(portions))
            for variant, shift in zip(_variants(cells), _dodges(len(_variants(cells)), 0.16), strict=True):
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
            axes.set_xticks(range(len(portions)), [_counted_label(cells, portion) for portion in portions])
            axes.set_title(_rate_label(rate))
        panels[0, 0].set_ylabel("mean rate")
        panels[0, 0].set_ylim(bottom=0)
        legend(figure, [key(variant) for variant in _variants(frame)])
        return to_svg(figure, f"figure{number}")


def distribution_figure(summary: StudySummary, number: int) -> str:
    """The share of trials that are at least as good as a value, for each metric."""
    series = shown(summary)
    frame = summary.curves
    with matplotlib.rc_context(STYLE):
        figure, panels = grid(1, len(series))
        for axes, one in zip(panels[0], series, strict=True):
            cells = frame.filter(_is(one))
            for variant in _variants(cells):
                own, seen = cells.filter(pl.col("variant") == variant), look(variant)
                axes.step(own["value"].to_list(), own["share"].to_list(), color=seen.colour, linewidth=1.8)
            axes.set_xlabel(series_label(one))
            _fit_values(axes, cells["value"].to_list())
        panels[0, 0].set_yscale("log")
        panels[0, 0].set_ylabel("share of trials at least as good")
        label_percents(panels[0, 0].yaxis)
        legend(figure, [key(variant) for variant in _variants(frame)])
        return to_svg(figure, f"figure{number}")


def _fit_values(axes: Axes, values: Sequence[float]) -> None:
    if min(values) > 0 and max(values) > 10 * min(values):
        axes.set_xscale("log")
        label_decades(axes.xaxis, max(values) / min(values))


def distinct_portions(frame: pl.DataFrame) -> list[str]:
    """The portions that differ from the smaller ones in some cell: of 50 trials the best 1 % is the best."""
    counted = frame.group_by("portion").agg(pl.col("counted").max()).sort("portion")
    return counted.unique("counted", keep="first", maintain_order=True)["portion"].cast(pl.String).to_list()


def _is(series: Series) -> pl.Expr:
    return (pl.col("name") == series[0]) & (pl.col("condition") == series[1])


def _variants(frame: pl.DataFrame) -> list[str]:
    """Raw first."""
    found = frame["variant"].unique().to_list()
    return sorted(found, key=lambda variant: (variant != "raw", variant))


def _dodges(count: int, width: float) -> list[float]:
    """Shifts that set several things beside one another, `width` apart in all."""
    return [width * (index / (count - 1) - 0.5) if count > 1 else 0.0 for index in range(count)]


def _title(axes: Axes, row: int, text: str) -> None:
    if row == 0:
        axes.set_title(text)


def _portion_title(portion: str) -> str:
    return "best trial" if portion == "best" else f"mean of the {portion}"


def _counted_label(cells: pl.DataFrame, portion: str) -> str:
    counted = cells.filter(pl.col("portion") == portion)["counted"].max()
    return f"{portion}\n({counted:,})"


def _rate_label(path: str) -> str:
    return path.rsplit(".", 1)[-1].replace("_", " ")
