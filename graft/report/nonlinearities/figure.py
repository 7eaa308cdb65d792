"""Learned non-linearities as small pictures side by side, one for each task."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from graft.report.nonlinearities.learned import Learned, Nonlinearity, Panel, gelu
from graft.report.rendering.drawing import SOFT, Drawing, figure_style, legend, to_svg
from graft.report.rendering.formatting import number
from spaces.messages import shorten

_PANEL = (2.7, 2.1)
"""Width and height in inches; a page has room for four side by side."""
_MOST_COLUMNS = 4
_LEAST_WIDTH = 5.6
"""Width of the legend, in inches."""
_MARGIN = 0.08
_SAMPLES = 201
_MOST_LETTERS = 26
_OWN, _OTHER = "#0072B2", "#D55E00"
"""Colours of a learned curve, and of a version that stands in for it."""


def svg(learned: Learned) -> Drawing:
    """Return the picture as an <svg> element."""
    with figure_style():
        return to_svg(figure(learned), "nonlinearities")


def figure(learned: Learned) -> Figure:
    """Return the picture: a panel for each task and component, each with axes of its own."""
    panels = learned.panels
    columns = min(len(panels), _MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    size = (max(columns * _PANEL[0], _LEAST_WIDTH), rows * _PANEL[1] + 0.5)
    drawn = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.1))
    for index, panel in enumerate(panels, 1):
        _draw(drawn.add_subplot(rows, columns, index), panel)
    several = any(len(panel.members) > 1 for panel in learned.panels)
    label = f"best by {learned.objective}" if several else "learned"
    keys = [Line2D([], [], color=_OWN, linewidth=1.8, label=label)]
    if several:
        keys.append(Line2D([], [], color=_OWN, linewidth=0.7, alpha=0.6, label="other trials"))
    keys.append(Line2D([], [], color=SOFT, linewidth=1.1, linestyle="--", label="GELU"))
    if learned.version:
        keys.append(Line2D([], [], color=_OTHER, linewidth=1.8, label=learned.version.label))
    legend(drawn, keys)
    return drawn


def _draw(axes: Axes, panel: Panel) -> None:
    # All active ranges are shown, with a margin.
    least = min(spline.active_range[0] for spline in panel.members)
    most = max(spline.active_range[1] for spline in panel.members)
    low, high = least - _MARGIN * (most - least), most + _MARGIN * (most - least)
    for spline in panel.members:
        width, strength = (1.8, 1.0) if spline is panel.leader else (0.7, 0.4)
        beyond = spline.high - spline.low
        for values, colour in _curves(spline):
            inside = np.linspace(spline.low, spline.high, len(values)).tolist()
            xs = [spline.low - beyond, *inside, spline.high + beyond]  # with a piece of the constants
            up = [values[0], *values, values[-1]]
            axes.plot(xs, up, color=colour, linewidth=width, alpha=strength, zorder=2 + strength)
    xs = np.linspace(low, high, _SAMPLES).tolist()
    axes.plot(xs, list(map(gelu, xs)), color=SOFT, linewidth=1.1, linestyle="--", zorder=2.5)
    # All curves of the panel fit, GELU need not.
    seen = [height for spline in panel.members for values, _ in _curves(spline) for height in values]
    room = _MARGIN * (max(seen) - min(seen)) or 1.0
    axes.set(xlim=(low, high), ylim=(min(seen) - room, max(seen) + room))
    axes.set_title(shorten(panel.title, _MOST_LETTERS))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    if panel.leader and panel.leader.version:
        error = number(panel.leader.version.error)
        axes.set_xlabel(f"off by at most {error}", color=_OTHER, fontsize=9)


def _curves(spline: Nonlinearity) -> list[tuple[Sequence[float], str]]:
    """Return values over the spline's range and their colour, then those of its version, if any."""
    return [(spline.knots, _OWN), *([(spline.version.values, _OTHER)] if spline.version else [])]
