"""The look of every figure, and how it becomes an <svg> element or a file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from graft.report.interactive.charts import add_charts
from graft.report.rendering.formatting import number, plain

INK, SOFT, GRID = "#1b1f24", "#57606a", "#e6eaef"
PANEL = (3.6, 2.6)
"""Inches of one panel; a page has room for three side by side."""

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#8c959f",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "svg.fonttype": "path",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
}
"""Letters are drawn as paths, since no font is sure to be there; a `$` in a name is a dollar."""


def figure_style() -> AbstractContextManager[None]:
    """Return a context in which figures get the common look."""
    return matplotlib.rc_context(cast(Any, STYLE))


class Look(NamedTuple):
    """The label, colour and marker of a variant in every figure."""

    label: str
    colour: str
    marker: str


_LOOKS = {
    "raw": Look(label="raw parameters", colour="#D55E00", marker="o"),
    "ema": Look(label="EMA", colour="#009E73", marker="s"),
    "bema": Look(label="BEMA", colour="#0072B2", marker="^"),
}
"""Colours of Okabe and Ito, told apart with any colour vision; the markers do it without colour."""


def look(variant: str) -> Look:
    """Return the look of a variant, the same everywhere; those that we do not know share one."""
    return _LOOKS.get(variant, Look(label=variant, colour="#CC79A7", marker="D"))


def grid(rows: int, columns: int) -> tuple[Figure, Any]:
    """Return equal panels that share the y axes of rows: a figure and its axes [rows, columns]."""
    width = PANEL[0] * max(columns, 2)  # room for the legend
    figure = Figure(figsize=(width, PANEL[1] * rows + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharey="row")


_ARM_COLOURS = ("#57606a", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A900")
"""Colours of Okabe and Ito, told apart with any colour vision; the baseline's is grey."""


def arm_colour(index: int) -> str:
    """Return an arm's colour in every figure, by its place in the experiment; the baseline is 0."""
    return _ARM_COLOURS[index if index < len(_ARM_COLOURS) else 1 + index % 7]


def key(variant: str) -> Line2D:
    """Return the legend's entry of a variant."""
    label, colour, marker = look(variant)
    return Line2D([], [], color=colour, marker=marker, markersize=6, linewidth=1.8, label=label)


Looks = Mapping[str, Mapping[str, Any]]
"""Series in the order of the legend -> keywords of `Axes.plot` for their lines."""


def series_looks(names: Sequence[str]) -> Looks:
    """Return a colour for each series."""
    return {name: {"color": arm_colour(index)} for index, name in enumerate(names)}


def series_keys(looks: Looks) -> list[Line2D]:
    """Return the legend of series."""
    return [Line2D([], [], linewidth=1.8, label=name, **look) for name, look in looks.items()]


def legend(figure: Figure, keys: Sequence[Line2D]) -> None:
    """Draw one legend above all panels, where no data is."""
    figure.legend(handles=list(keys), loc="outside upper center", ncols=min(len(keys), 3))


def draw_cells(
    axes: Axes,
    rows: Sequence[Sequence[float | None]],
    write: Callable[[float | None], str] | None,
    is_bright: Callable[[float], bool],
    *,
    size: float = 7.5,
    empty: str = "white",
    cmap: str = "cividis",
    **looks: Any,
) -> AxesImage:
    """Draw the cells of a heat map, each with its number as `write` has it, unless that is None.

    The numbers have `size` points, and dark letters where the colour `is_bright`; `empty` is the
    colour of the letters of a cell without a number. `looks`: keywords of `Axes.imshow`.
    """
    shades = [[math.nan if value is None else value for value in row] for row in rows]
    image = axes.imshow(shades, cmap=cmap, aspect="auto", **looks)
    axes.grid(visible=False)
    if write is None:
        return image
    for index, row in enumerate(rows):
        for column, value in enumerate(row):
            ink = empty if value is None else INK if is_bright(value) else "white"
            text = write(value)
            axes.text(column, index, text, ha="center", va="center", fontsize=size, color=ink)
    return image


def fit_scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic over a factor of ten; with zeros it is linear near them."""
    positive = [value for value in values if value > 0]
    if not positive or min(values) < 0 or max(positive) < 10 * min(positive):
        axes.yaxis.set_major_locator(MaxNLocator(5))
    elif len(positive) < len(values):
        axes.set_yscale("symlog", linthresh=min(positive))
    else:
        axes.set_yscale("log")
        label_decades(axes.yaxis, max(positive) / min(positive))


def label_decades(axis: Axis, ratio: float) -> None:
    """Label a logarithmic axis over max / min = `ratio`; few decades get 2 and 5 between them."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 100 else (1.0,), numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def on_doublings(amount: float) -> float:
    """Return a gap's position on an axis where 0, 1, 3, 7, 15 are equally far apart."""
    return math.log2(amount + 1)


def label_doublings(axis: Axis, most: float) -> None:
    """Label 0, 1, 3, 7, ... on an axis of doublings that ends at `most`."""
    last = math.ceil(on_doublings(most))
    axis.set_major_locator(FixedLocator(range(last + 1)))
    axis.set_major_formatter(FuncFormatter(lambda position, _: f"{2**position - 1:g}"))


class Drawing(str):
    """An <svg> element, with the figure that it shows and the settings that this was drawn with."""

    figure: Figure
    settings: matplotlib.RcParams


def to_svg(figure: Figure, name: str) -> Drawing:
    """Return the figure as <svg> with its charts' data as <metadata>; its ids start with `name`."""
    with io.StringIO() as file, matplotlib.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
        text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text).rstrip()
    drawing = Drawing(plain(add_charts(text, figure)))
    drawing.figure, drawing.settings = figure, matplotlib.rcParams.copy()
    return drawing


def picture_endings(svg: str) -> tuple[str, ...]:
    """Return the endings that a picture can be written to; an <svg> over HTTP has no figure."""
    return (".svg", ".png", ".pdf") if isinstance(svg, Drawing) else (".svg",)


def save(svg: str, path: Path) -> None:
    """Write a picture to a file whose ending is one of `picture_endings`."""
    if isinstance(svg, Drawing) and path.suffix != ".svg":
        with matplotlib.rc_context(cast(Any, svg.settings)):
            dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
            svg.figure.savefig(path, dpi=200, metadata=dated)
    else:
        path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{svg}\n', encoding="utf-8")


def dodges(count: int) -> list[float]:
    """Return shifts that set several marks of one position beside one another."""
    return [0.16 * (index / (count - 1) - 0.5) if count > 1 else 0.0 for index in range(count)]
