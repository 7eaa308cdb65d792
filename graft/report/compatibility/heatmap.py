"""The compatibility matrix as a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from graft.report.compatibility.cells import COLOURS, MARK
from graft.report.compatibility.content import Transfer
from graft.report.rendering.drawing import INK, SOFT, Drawing, figure_style, to_svg
from spaces.messages import shorten_name

_CELL = (0.78, 0.5)
"""Width and height of one cell, in inches."""
_short = partial(shorten_name, width=26)
_UNITS = {"points": "points", "percent": "%", "difference": ""}
_BAR = (0.16, 2.4)
"""Width and least height of the bar of colours, in inches."""
_MISSING: dict[str, Any] = {"facecolor": "#f6f8fa", "edgecolor": "#c4cad1", "hatch": "////"}


def svg(transfer: Transfer) -> Drawing:
    """Return the picture as an <svg> element; cells all have one size, so it grows with them."""
    with figure_style(), matplotlib.rc_context({"savefig.bbox": "tight"}):
        return to_svg(figure(transfer), "matrix")


def figure(transfer: Transfer) -> Figure:
    """Return the picture; what is around the cells lies outside the figure's own size."""
    matrix = transfer.matrix
    drawn = Figure(figsize=(len(matrix.targets) * _CELL[0], len(matrix.sources) * _CELL[1]))
    axes = drawn.add_axes((0, 0, 1, 1))
    for cell in transfer.cells.values():
        column, row = matrix.targets.index(cell.target), matrix.sources.index(cell.source)
        look: dict[str, Any] = {"facecolor": cell.colour, "edgecolor": "white"} if cell.colour else _MISSING
        axes.add_patch(Rectangle((column, row), 1, 1, linewidth=0.8, **look))
        if cell.is_own:
            axes.add_patch(Rectangle((column + 0.03, row + 0.04), 0.94, 0.92, fill=False, edgecolor=INK, linewidth=1.4))
        if cell.colour:
            height = 0.38 if cell.interval else 0.5
            write = partial(axes.text, column + 0.5, ha="center", va="center", color=cell.ink)
            write(row + height, cell.text, fontsize=9)
            write(row + 0.74, cell.interval, fontsize=5.5)
    # The names of rows are to the left, those of columns above, and nothing else is around.
    axes.set(xlim=(0, len(matrix.targets)), ylim=(len(matrix.sources), 0))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, top=False, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xticks([column + 0.5 for column in range(len(matrix.targets))], list(map(_short, matrix.targets)))
    axes.set_yticks([row + 0.5 for row in range(len(matrix.sources))], list(map(_short, matrix.sources)))
    for label in axes.get_xticklabels():
        label.set(rotation=35, ha="left", rotation_mode="anchor")
    lowest = 0.0
    if len(transfer.shading.limits) == 1:
        lowest = 1 - max(1, _BAR[1] / (len(matrix.sources) * _CELL[1]))
        _scale(axes, transfer, lowest)
    _key(axes, transfer, lowest)
    return drawn


def _scale(axes: Axes, transfer: Transfer, lowest: float) -> None:
    """Draw the colour bar of a matrix of one unit, down to `lowest` of the axes; red is worse."""
    ((unit, limit),) = transfer.shading.limits.items()
    colours = COLOURS if transfer.direction == "maximize" else COLOURS.reversed()
    means = transfer.matrix.cells["mean"].drop_nulls()
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    beyond = bool((means < -1.001 * limit).any()), bool((means > 1.001 * limit).any())
    wide = _BAR[0] / (len(transfer.matrix.targets) * _CELL[0])
    beside = axes.inset_axes((1 + wide, lowest, wide, 1 - lowest))
    scale = ScalarMappable(Normalize(-limit, limit), colours)
    bar = beside.figure.colorbar(scale, cax=beside, extend=extend[beyond])
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.set_label(f"change against {_short(transfer.matrix.baseline)} ({_UNITS[unit]})".replace(" ()", ""))


def _key(axes: Axes, transfer: Transfer, below: float) -> None:
    """Draw a key of the marks that occur, `below` everything else on the scale of the axes."""
    cells, keys = transfer.cells.values(), list[Patch]()
    if any(cell.is_own for cell in cells):
        keys.append(Patch(facecolor="none", edgecolor=INK, linewidth=1.4, label="source's own target"))
    if any(cell.colour is None for cell in cells):
        keys.append(Patch(label="no pair", **_MISSING))
    if any(MARK in cell.text for cell in cells):
        keys.append(Patch(facecolor="none", edgecolor="none", label=f"{MARK} q < 0.05"))
    about = f"rows: {_short(transfer.paths.source)}   columns: {_short(transfer.paths.target)}"
    axes.legend(
        handles=keys,
        title=about,
        alignment="left",
        loc="upper left",
        bbox_to_anchor=(0, below),
        bbox_transform=axes.transAxes,
        borderaxespad=0.8,
        borderpad=0,
        ncols=3,
        fontsize=9,
        title_fontsize=9,
        labelcolor=SOFT,
    )
