"""Charts as declarations, in the options of Apache ECharts; `static/charts.js` draws them.

A declaration says what is drawn. The script adds what all charts have alike: colours in light and
dark, reading off, zooming, the keyboard, the table of the numbers, and the downloads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

_DIGITS = 8
"""Significant digits of the numbers in a page."""
_FAR = 5.0
"""A number this many interquartile ranges beyond the quartiles is an outlier."""
_LOG = 20.0
"""Positive numbers over more than this factor get a logarithmic axis."""
_FEW = 40
"""A line of fewer points shows each of them."""

Option = dict[str, Any]


class Line(NamedTuple):
    """One line of a chart, from left to right, with the ends of an interval where known."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart; a template writes it as an element."""

    title: str
    option: Mapping[str, Any]
    link: str = ""
    """The address of a trial, up to its number: a click on a mark follows it."""
    note: str = ""
    """A sentence above the chart: which part is shown first, or why some of it is not."""
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Axis of parallel coordinates -> the range of it that is kept."""
    legend: bool = True
    """True if names of lines are shown, by which they can be hidden."""
    height: int = 320
    """Height in pixels."""

    def __html__(self) -> str:
        text = json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))
        return Markup(
            '<div class="chart" data-chart="{}"><p class="soft">{}: a script draws it, and none runs here. '
            "The table of trials has its numbers.</p></div>"
        ).format(text, self.title)


def write_frame(frame: pl.DataFrame) -> Option:
    """Return a frame as a data set of ECharts; what is no finite number is null."""
    floats = pl.selectors.float()
    finite = frame.with_columns(pl.when(floats.is_finite()).then(floats.round_sig_figs(_DIGITS)))
    return {"dimensions": finite.columns, "source": finite.rows()}


def draw_curves(
    lines: Sequence[Line], labels: tuple[str, str], title: str, *, steps: bool = False, legend: bool = True
) -> Chart:
    """Return lines over two axes; `labels` of x and y. `steps`: each y stays until the next x."""
    data, series = list[Option](), list[Option]()
    for index, line in enumerate(lines):
        columns = [line.x, line.y, *([line.low, line.high] if line.low else [])]
        names = [*labels, "low", "high"][: len(columns)]
        data.append({"dimensions": names, "source": [*zip(*columns, strict=True)], "name": line.name})
        of = {"name": line.name, "datasetIndex": index}
        if line.low:
            series.append({**of, "type": "custom", "renderItem": "band", "encode": {"x": 0, "y": [2, 3]}, "z": 1})
        shown = {"step": "end" if steps else False, "showSymbol": len(line.x) < _FEW, "connectNulls": True}
        series.append({**of, "type": "line", "encode": {"x": 0, "y": 1}, "sampling": "lttb", **shown})
    axes, note = _axes([], [y for line in lines for y in line.y], labels)
    option = {"dataset": data, "series": series, **axes}
    return Chart(title=title, option=option, note=note, legend=legend)


def draw_history(trials: pl.DataFrame, best: Line, labels: tuple[str, str], title: str, link: str) -> Chart:
    """Return marks of trials by number and a line of steps; the marks are the page's frames."""
    axes, note = _axes([], trials["objective"].drop_nulls().to_list(), labels)
    line = {"dimensions": labels, "source": [*zip(best.x, best.y, strict=True)], "name": best.name}
    curve: Option = {"type": "line", "name": best.name, "datasetIndex": 2, "step": "end", "showSymbol": False}
    series = [*_marks("number"), {**curve, "encode": {"x": 0, "y": 1}, "z": 3}]
    option = {"dataset": [*_FRAMES, line], "series": series, **axes}
    return Chart(title=title, option=option, note=note, link=link)


def draw_slice(trials: pl.DataFrame, column: str, objective: str, link: str, words: Sequence[str] = ()) -> Chart:
    """Return the page's frames by a value and the objective; `words`: the texts of the value."""
    labels = (column.removeprefix("params."), objective)
    x = [] if words else trials[column].drop_nulls().to_list()
    axes, note = _axes(x, trials["objective"].drop_nulls().to_list(), labels, words)
    option = {"dataset": _FRAMES, "series": _marks(column), **axes}
    return Chart(title=" against ".join(labels), option=option, note=note, link=link, height=240)


def draw_front(trials: pl.DataFrame, front: pl.DataFrame, labels: tuple[str, str], link: str) -> Chart:
    """Return both objectives of trials, and their Pareto front as a line of steps."""
    names = ("objective", "second_objective")
    both = pl.concat([trials.select(front.columns), front]).unique("number", keep="first").drop_nulls()
    axes, note = _axes(both[names[0]].to_list(), both[names[1]].to_list(), labels)
    curve: Option = {"type": "line", "name": "Pareto front", "datasetIndex": 1, "step": "end", "showSymbol": False}
    series = [{"type": "scatter", "name": "trials", "encode": {"x": names[0], "y": names[1]}}]
    series.append({**curve, "encode": {"x": names[0], "y": names[1]}})
    option = {"dataset": [write_frame(both), write_frame(front)], "series": series, **axes}
    return Chart(title="both objectives of trials", option=option, note=note, link=link)


def draw_parallel(
    trials: pl.DataFrame,
    columns: Sequence[str],
    words: Mapping[str, Sequence[str]],
    ranges: Mapping[str, tuple[float, float]],
    link: str,
) -> Chart:
    """Return a line for each trial over an axis for each column; the best fifth stands out.

    `trials`: the best first, with `number` and whether each is `kept`, which the fifth is of.
    `words`: as for `draw_slice`, by column.
    """
    frame = trials.select(*columns, "number")
    kept, others = frame.filter(trials["kept"]), frame.filter(~trials["kept"])
    best = -(-kept.height // 5)
    parts = [("trials out of the ranges", others)] if others.height else []
    parts += [("other trials", kept.slice(best)), ("best fifth", kept.head(best))]
    axes: list[Option] = []
    for index, column in enumerate(columns):
        path = column.removeprefix("params.")
        values = [] if column in words else frame[column].drop_nulls().to_list()
        scale = _scale(values, words.get(column, ()))
        gap = 12 + 14 * (index % 2)  # names of neighbours would lie over one another
        axes.append({"dim": index, "id": path, "name": path.rpartition(".")[2], "nameGap": gap, **scale})
    option = {
        "dataset": [{**write_frame(part), "name": name} for name, part in parts],
        "series": [{"type": "parallel", "name": name, "datasetIndex": at} for at, (name, _) in enumerate(parts)],
        "parallelAxis": axes,
    }
    bounds = {
        path: (low if low > -math.inf else None, high if high < math.inf else None)
        for path, (low, high) in ranges.items()
    }
    return Chart(title="values of trials, and their objectives", option=option, link=link, ranges=bounds, height=360)


def draw_effects(effects: pl.DataFrame, label: str, title: str, *, from_zero: bool = True) -> Chart | None:
    """Return a row for each value with its interval; None where there is no value.

    `effects`: a name, a value, the ends of its interval, and a text beside it. `from_zero`: the
    values are differences, with a line at none.
    """
    if effects.is_empty():
        return None
    series: list[Option] = [
        {"type": "custom", "name": "interval", "renderItem": "interval", "encode": {"x": [2, 3], "y": 0}},
        {"type": "scatter", "name": "value", "encode": {"x": 1, "y": 0}, "symbolSize": 10},
    ]
    if from_zero:
        series[1]["markLine"] = {"data": [{"xAxis": 0}], "symbol": "none", "silent": True, "label": {"show": False}}
    names = ["of", label, "low", "high", "verdict" if from_zero else "count"]
    option = {
        "dataset": [{"dimensions": names, "source": effects.rows()}],
        "series": series,
        "xAxis": {"type": "value", "name": label, "scale": not from_zero},
        "yAxis": {"type": "category", "data": effects.to_series(0).to_list(), "inverse": True},
    }
    return Chart(title=title, option=option, height=90 + 30 * effects.height)


def draw_pairs(pairs: pl.DataFrame, baseline: str, label: str) -> Chart:
    """Return a mark for each row of ArmComparison.pairs; on the line it equals the baseline's."""
    labels = (f"{label} of {baseline}", f"{label} of the arm")
    both = pl.concat([pairs["value"], pairs["against"]])
    ends = both.min(), both.max()
    data: list[Option] = [{"dimensions": labels, "source": [(end, end) for end in ends], "name": "no difference"}]
    equal: Option = {"type": "line", "name": "no difference", "encode": {"x": 0, "y": 1}, "showSymbol": False}
    series = [{**equal, "colour": "soft", "lineStyle": {"type": "dashed"}}]
    for index, ((arm,), points) in enumerate(pairs.group_by("arm", maintain_order=True), 1):
        data.append({"dimensions": [*labels, "seed"], "source": points.select("against", "value", "seed").rows()})
        of = {"name": str(arm), "datasetIndex": index, "colour": index % 8, "symbolSize": 9}
        series.append({**of, "type": "scatter", "encode": {"x": 0, "y": 1}})
    option = {"dataset": data, "series": series, **_axes([], [], labels)[0]}
    return Chart(title=f"seeds of each arm beside those of {baseline}", option=option)


_FRAMES: Sequence[Option] = ({"frame": "kept"}, {"frame": "others"})
"""Trials in the ranges that a person chose, and the others: a page writes them for all charts."""


def _marks(x: str) -> list[Option]:
    """Return the series of the page's frames, the trials in the ranges above the others."""
    of: Option = {"type": "scatter", "encode": {"x": x, "y": "objective"}, "large": True, "largeThreshold": 4_000}
    return [
        {**of, "name": "trials", "datasetIndex": 0, "z": 2},
        {**of, "name": "trials out of the ranges", "datasetIndex": 1, "z": 1},
    ]


def _axes(
    x: Sequence[float], y: Sequence[float], labels: tuple[str, str], words: Sequence[str] = ()
) -> tuple[Option, str]:
    """Return the axes, with the part of y that is shown first, and the note on outliers beyond."""
    across = {**_scale(x, words), "name": labels[0]}
    up = {**_scale(y), "name": labels[1]}
    zoom: Option = {"type": "inside", "yAxisIndex": 0, "filterMode": "none"}
    note, known = "", pl.Series(y, dtype=pl.Float64)
    first, third = known.quantile(0.25), known.quantile(0.75)
    if up["type"] == "value" and first is not None and third is not None and third > first:
        room = _FAR * (third - first)
        inside = known.filter(known.is_between(first - room, third + room))
        if inside.len() < known.len():
            low, high = float(inside.min()), float(inside.max())  # pyright: ignore
            zoom |= {"startValue": low, "endValue": high}
            beyond = sum(not low <= value <= high for value in y)
            note = f"{beyond:,} of {len(y):,} lie beyond what is shown first; “reset” shows them."
    zooms = [{"type": "inside", "xAxisIndex": 0, "filterMode": "none"}, zoom]
    return {"xAxis": across, "yAxis": up, "dataZoom": zooms}, note


def _scale(values: Iterable[float], words: Sequence[str] = ()) -> Option:
    """Return the kind of an axis: of words, logarithmic, or plain and not drawn down to 0."""
    if words:
        return {"type": "category", "data": words}
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return {"type": "log"} if low > 0 and high > _LOG * low else {"type": "value", "scale": True}
