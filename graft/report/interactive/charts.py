"""Figures of matplotlib as declarations of charts, which `graft/web/static/charts.js` draws.

`read_charts` reads lines, bands, error bars and marks back from a section's axes, in the options of
Apache ECharts that `graft.web.charts.specs` writes, too. A figure with anything else in it has no
charts and stays a picture: a chart never shows less than its figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, FillBetweenPolyCollection, LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import LogFormatter, ScalarFormatter

_DIGITS = 8
_FEW = 40
"""A line of fewer points shows each of them."""
_MANY = 4_000
"""Marks that are drawn as one."""
_MOST = 20_000
"""Rows of a figure; with more its numbers would weigh more than its picture."""
_COLOURS = {
    "#0072b2": "c0",
    "#d55e00": "c1",
    "#009e73": "c2",
    "#cc79a7": "c3",
    "#e69f00": "c4",
    "#56b4e9": "c5",
    "#b8a900": "c6",
    "#57606a": "c7",
    "#1b1f24": "ink",
}
"""Colour of a figure -> the style sheet's name of its colour in light and dark."""
_DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dashed"}
_STEPS = {"steps": "start", "steps-pre": "start", "steps-mid": "middle", "steps-post": "end"}
_SYMBOLS = {"s": "rect", "^": "triangle", "D": "diamond"}
"""All other markers are circles."""
_NO_SYMBOLS = (None, "None", "none", "", " ")

Option = dict[str, Any]
Number = float | None


class UnknownArtistError(Exception):
    """An axes has something in it, or a scale, that charts do not draw."""


class _Layer(NamedTuple):
    """A line, a band, a set of error bars or a set of marks."""

    name: str
    colour: str
    rows: list[list[Number]]
    """x and y, or x, y and the ends of an interval of y."""
    series: Option
    interval: Option | None = None
    """The band or the error bars of the same rows."""

    @property
    def is_interval(self) -> bool:
        return self.series["type"] == "custom"


def read_charts(figure: Figure) -> list[Option]:
    """Return a chart for each panel of a drawn figure, or none if charts do not draw all of it."""
    panels = [axes for axes in figure.axes if axes.get_visible()]
    keys = [handle for legend in figure.legends for handle in legend.legend_handles if isinstance(handle, Line2D)]
    try:
        if figure.texts or len({axes.get_subplotspec() for axes in panels}) < len(panels):
            raise UnknownArtistError
        charts = [_read_panel(axes, panels, keys) for axes in panels]
    except UnknownArtistError:
        return []
    rows = sum(len(data["source"]) for chart in charts for data in chart["option"]["dataset"])
    return charts if rows <= _MOST else []


def add_charts(svg: str, figure: Figure) -> str:
    """Return the picture of a figure with its charts, if it has any, as <metadata>."""
    charts = read_charts(figure)
    text = json.dumps(charts, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    metadata = f"<metadata>{escape(text, quote=False)}</metadata></svg>"
    return svg.replace("</svg>", metadata) if charts else svg


def _read_panel(axes: Axes, panels: Sequence[Axes], keys: Sequence[Line2D]) -> Option:
    others = (axes.artists, axes.images, axes.patches, axes.tables, axes.texts, axes.child_axes)
    if axes.name != "rectilinear" or any(others):
        raise UnknownArtistError
    labels = _beside(panels, axes, "column", Axes.get_xlabel), _beside(panels, axes, "row", Axes.get_ylabel)
    title = _beside(panels, axes, "column", Axes.get_title)
    across, up = _read_axis(axes.xaxis, labels[0], "x"), _read_axis(axes.yaxis, labels[1], "y")
    layers = _merge([*_layers(axes, [*keys, *axes.lines])])
    is_log = [axis["type"] == "log" for axis in (across, up)]
    marks = [row[:2] for layer in layers if not layer.is_interval for row in layer.rows]
    if not marks or any(
        log and value is not None and value <= 0 for row in marks for log, value in zip(is_log, row, strict=True)
    ):
        raise UnknownArtistError
    columns = [axis.pop("column") for axis in (across, up)]
    data, series = list[Option](), list[Option]()
    for index, layer in enumerate(layers):
        name = layer.name or _tick(layer, up, 1) or _tick(layer, across, 0) or f"line {index + 1}"
        data.append({"dimensions": [*columns, "low", "high"][: len(layer.rows[0])], "source": layer.rows, "name": name})
        of = {"name": name, "datasetIndex": index, "colour": _COLOURS.get(layer.colour, layer.colour)}
        series += [{**of, **fields} for fields in (layer.interval, layer.series) if fields]
    zooms = [{"type": "inside", "filterMode": "none", f"{side}AxisIndex": 0} for side in "xy"]
    option = {"dataset": data, "series": series, "xAxis": across, "yAxis": up, "dataZoom": zooms}
    fixed: Option = {"link": "", "note": "", "ranges": {}, "height": 320}
    return {
        "title": title or " against ".join(columns[::-1]),
        "heading": title,
        "option": option,
        "legend": len({dataset["name"] for dataset in data}) > 1,
        **fixed,
    }


def _beside(panels: Sequence[Axes], axes: Axes, along: str, read: Any) -> str:
    """Return a label of the axes, or the one that a panel has for its whole row or column."""
    label, spec = str(read(axes)), axes.get_subplotspec()
    if label or spec is None:
        return label
    span = "rowspan" if along == "row" else "colspan"
    same = (panel for panel in panels if getattr(panel.get_subplotspec(), span, None) == getattr(spec, span))
    return next(filter(None, map(str, map(read, same))), "")


def _read_axis(axis: Axis, name: str, side: str) -> Option:
    """Return an axis' kind, limits and name, and the labels of ticks that are no plain numbers."""
    scale, formatter = axis.get_scale(), axis.get_major_formatter()
    if scale not in ("linear", "log"):
        raise UnknownArtistError
    low, high = sorted(map(float, axis.get_view_interval()))
    option: Option = {
        "type": "log" if scale == "log" else "value",
        "name": name,
        "column": name or side,
        "min": low,
        "max": high,
    }
    if axis.get_inverted():
        option["inverse"] = True
    ticks = [float(tick) for tick in axis.get_majorticklocs() if low <= tick <= high]
    texts = [str(text) for text in formatter.format_ticks(ticks)]
    is_plain = isinstance(formatter, ScalarFormatter | LogFormatter) or [*map(_parse, texts)] == ticks
    # ECharts would label decades alone.
    if not is_plain or (scale == "log" and high < 100 * low and len(ticks) > 1):
        option["labels"] = [[tick, text] for tick, text in zip(ticks, texts, strict=True)]
    if not is_plain:
        option["column"] = f"{name or side} (position)"
    return option


def _parse(text: str) -> float | None:
    """Return the number that a tick's label is."""
    try:
        return float(text.replace("−", "-").replace(",", ""))
    except ValueError:
        return None


def _tick(layer: _Layer, axis: Option, column: int) -> str:
    """Return the label of the tick at which all of a layer stands, if the axis has labels."""
    known = [row[column] for row in layer.rows]
    near = {min(axis.get("labels", [(0, "")]), key=lambda tick: abs(tick[0] - (at or 0.0)))[1] for at in known}
    return near.pop().replace("\n", " ") if len(near) == 1 else ""


def _layers(axes: Axes, keys: Sequence[Line2D]) -> Iterator[_Layer]:
    bars = [container for container in axes.containers if isinstance(container, ErrorbarContainer)]
    if len(bars) < len(axes.containers) or any(bar.has_xerr for bar in bars):
        raise UnknownArtistError
    caps = {id(cap) for bar in bars for cap in bar.lines[1]}
    labels = {id(bar.lines[0]): str(bar.get_label()) for bar in bars}
    for line in axes.lines:
        if id(line) not in caps and line.get_visible():
            yield from _read_line(axes, line, keys, labels.get(id(line), ""))
    for collection in filter(Collection.get_visible, axes.collections):
        yield from _read_collection(collection, keys)


def _read_line(axes: Axes, line: Line2D, keys: Sequence[Line2D], label: str) -> Iterator[_Layer]:
    x, y = (np.asarray(values, dtype=float).tolist() for values in line.get_data(orig=False))
    has_x, has_y = line.get_transform().contains_branch_seperately(axes.transData)
    if not (has_x or has_y):
        raise UnknownArtistError
    if not has_x:  # axhline and axvline span the axes
        x = list(axes.get_xlim())
    if not has_y:
        y = list(axes.get_ylim())
    if not len(x):
        return
    colour, marker, dashes = to_hex(line.get_color()), line.get_marker(), str(line.get_linestyle())
    name = "" if label.startswith("_") else label
    name = name or _name(line, colour, keys, lambda key: str(key.get_linestyle()) == dashes)
    if not name and not (has_x and has_y):
        name = f"at {x[0] if has_x else y[0]:g}"
    symbol = {
        "symbol": _SYMBOLS.get(str(marker), "circle"),
        "symbolSize": round(line.get_markersize() * (0.8 if marker == "." else 1.3)),
    }
    if dashes in _NO_SYMBOLS or len(x) == 1:
        series: Option = {"type": "scatter", **symbol}
    else:
        look = {"width": line.get_linewidth(), "type": _DASHES.get(dashes, "solid"), "opacity": line.get_alpha() or 1}
        step = _STEPS.get(line.get_drawstyle(), False)
        series = {"type": "line", "step": step, "lineStyle": look, "showSymbol": len(x) < _FEW, **symbol}
        if marker in _NO_SYMBOLS:
            series |= {"symbol": "circle", "symbolSize": 4, "showSymbol": False}
    yield _Layer(name, colour, _rows(x, y), {**series, "encode": {"x": 0, "y": 1}})


def _read_collection(collection: Collection, keys: Sequence[Line2D]) -> Iterator[_Layer]:
    colours = collection.get_edgecolor() if isinstance(collection, LineCollection) else collection.get_facecolor()
    colours = np.asarray(colours if len(colours) else collection.get_edgecolor())
    if collection.get_array() is not None or len(np.unique(colours, axis=0)) > 1:
        raise UnknownArtistError  # a colour for each mark says something
    colour = to_hex(colours[0]) if len(colours) else ""
    if isinstance(collection, FillBetweenPolyCollection) and getattr(collection, "t_direction", "") == "x":
        for path in collection.get_paths():
            ends = np.asarray(path.vertices)
            count = (len(ends) - 3) // 2  # there and back, each from one more point, and closed
            there, back = ends[1 : count + 1], ends[count + 2 : -1][::-1]
            if not np.array_equal(there[:, 0], back[:, 0]) or not np.diff(there[:, 0]).all():
                raise UnknownArtistError  # of steps, or over points that stand twice
            yield _interval("band", colour, there[:, 0], there[:, 1], back[:, 1])
    elif isinstance(collection, LineCollection):
        bars = [np.asarray(segment) for segment in collection.get_segments() if len(segment)]
        if any(len(bar) != 2 or bar[0, 0] != bar[1, 0] for bar in bars):
            raise UnknownArtistError  # no upright line
        if bars:
            yield _interval("bars", colour, *np.array([(bar[0, 0], *bar[:, 1]) for bar in bars]).T)
    elif isinstance(collection, PathCollection) and len(np.unique(collection.get_sizes())) == 1:
        points = np.ma.filled(np.ma.asarray(collection.get_offsets(), dtype=float), np.nan)
        size = 2 + round(math.sqrt(collection.get_sizes()[0]))
        series = {"type": "scatter", "symbolSize": size, "large": len(points) > _MANY, "encode": {"x": 0, "y": 1}}
        if len(points):
            name = _name(collection, colour, keys, lambda key: _has_marker(collection, key))
            yield _Layer(name, colour, _rows(points[:, 0].tolist(), points[:, 1].tolist()), series)
    else:
        raise UnknownArtistError


def _interval(kind: str, colour: str, x: Any, low: Any, high: Any) -> _Layer:
    rows = [[*row[:1], None, *row[1:]] for row in _rows(x.tolist(), low.tolist(), high.tolist())]
    series = {"type": "custom", "renderItem": kind, "encode": {"x": 0, "y": [2, 3]}, "z": 1}
    return _Layer("", colour, rows, series)


def _rows(*columns: Iterable[float]) -> list[list[Number]]:
    """Return the columns as rows of short numbers; what is no finite number is None."""
    digits = f".{_DIGITS}g"
    rows = zip(*columns, strict=True)
    return [[float(format(x, digits)) if math.isfinite(x) else None for x in row] for row in rows]


def _name(artist: Line2D | Collection, colour: str, keys: Sequence[Line2D], is_like: Callable[[Line2D], bool]) -> str:
    """Return an artist's label, or the legend's for its colour that is like it."""
    label = str(artist.get_label())
    if label and not label.startswith("_"):
        return label
    named = [key for key in keys if not str(key.get_label()).startswith("_")]
    known = [key for key in named if to_hex(key.get_color()) == colour]
    alike = [key for key in known if is_like(key)]
    names = {str(key.get_label()) for key in alike or known}
    if len(names) > 1:
        raise UnknownArtistError
    name = names.pop() if names else ""
    dashes = {str(key.get_label()) for key in named if is_like(key)}
    return f"{name}, {dashes.pop()}" if name and not alike and len(dashes) == 1 else name


def _has_marker(marks: PathCollection, key: Line2D) -> bool:
    style = MarkerStyle(key.get_marker() or "")
    path = style.get_path().transformed(style.get_transform())
    return np.array_equal(path.vertices, marks.get_paths()[0].vertices)


def _merge(layers: Sequence[_Layer]) -> list[_Layer]:
    """Return the layers, each interval in the first layer of its colour that has its x values."""
    merged = [layer for layer in layers if not layer.is_interval]
    for layer in layers:
        if not layer.is_interval:
            continue
        ends = {row[0]: row[2:] for row in layer.rows}
        for index, owner in enumerate(merged):
            outer = {row[0] for row in owner.rows}
            is_once = len(ends) == len(layer.rows) and len(outer) == len(owner.rows)
            is_free = not owner.is_interval and owner.interval is None
            if is_once and is_free and owner.colour == layer.colour and ends.keys() <= outer:
                rows = [[*row, *ends.get(row[0], (None, None))] for row in owner.rows]
                merged[index] = owner._replace(rows=rows, interval=layer.series)
                break
        else:
            merged.append(layer)
    return merged
