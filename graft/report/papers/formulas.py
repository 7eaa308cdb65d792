"""Figure 5 of paper 004: the weights of softmax, linearised softmax and linear attention over temperatures.

A figure of formulas, which needs no study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from graft.files import OutputError, writing
from graft.report.lines import series_keys
from graft.report.rendering.document import Document, Picture
from graft.report.rendering.drawing import INK, PANEL, arm_colour, figure_style, legend, to_svg
from graft.report.study import WRITERS

Numbers = NDArray[np.float64]

_TEMPERATURES = (0.25, 0.5, 1, 2, 4, 8)
_KEYS = 64
_QUERIES = 1000
_BINS = 60


def softmax(logits: Numbers, temperature: float) -> Numbers:
    """Weights [q, k] of logits [q, k]."""
    powers = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    return powers / powers.sum(-1, keepdims=True)


def linearised_softmax(logits: Numbers, temperature: float) -> Numbers:
    """Weights [q, k]: the first two terms of softmax around equal logits (paper 004, Appendix B)."""
    return (1 + (logits - logits.mean(-1, keepdims=True)) / temperature) / logits.shape[-1]


def linear(logits: Numbers, temperature: float) -> Numbers:
    """Weights [q, k] of linear attention (paper 004, equation 6)."""
    return logits / temperature / logits.shape[-1]


FORMULAS: Mapping[str, Callable[[Numbers, float], Numbers]] = {
    "softmax": softmax,
    "linearised softmax": linearised_softmax,
    "linear": linear,
}


def write_weights(title: str, path: Path) -> None:
    """Write the figure to `path`, .html or .md; raises OutputError for another ending."""
    if path.suffix not in WRITERS:
        raise OutputError(f"{path}: the ending must be one of {', '.join(WRITERS)}")
    caption = (
        f"Weights times the number of keys, {_KEYS}, of {_QUERIES:,} queries whose logits are standard normal, by "
        "temperature. Softmax and linearised softmax gather around equal weights, 1 (dotted), as it grows, linear "
        "attention around 0; at low temperatures linearised softmax has negative weights."
    )
    with writing(path):
        WRITERS[path.suffix](Document(title=title, blocks=[Picture(number=1, caption=caption, svg=_draw())]), path)


def _draw() -> str:
    logits = np.random.default_rng(0).standard_normal((_QUERIES, _KEYS))
    with figure_style():
        figure = Figure(figsize=(3 * PANEL[0], 2 * PANEL[1] + 0.5), layout="constrained")
        grid: Any = figure.subplots(2, 3)
        for axes, temperature in zip(grid.flat, _TEMPERATURES, strict=True):
            weights = {name: _KEYS * formula(logits, temperature) for name, formula in FORMULAS.items()}
            # softmax has a long tail, which is cut; 0 is an edge, below which it has nothing
            low, high = np.quantile(np.stack([weights["linearised softmax"], weights["linear"]]), [0.001, 0.999])
            width = (high - low) / _BINS
            edges = width * np.arange(np.floor(low / width), np.ceil(high / width) + 1)
            for place, values in enumerate(weights.values()):
                heights, _ = np.histogram(values, edges)
                axes.stairs(heights, edges, color=arm_colour(place), linewidth=1.4)
            axes.axvline(1, color=INK, linestyle=":", linewidth=1)
            axes.set_title(f"temperature {temperature:g}")
            axes.set_yticks([])
            axes.set_xlabel("weight x keys")
        legend(figure, series_keys(list(FORMULAS)))
        return to_svg(figure, "figure1")
