"""The figures of the papers that are formulas alone and need no study.

000/figure-10: what SSA has in place of the exponential.
001/figure-5: the entropy of softmax over its temperature and the spread of its logits.
004/figure-5: the weights of softmax, linearised softmax and linear attention over temperatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from graft.files import check_ending
from graft.report.rendering.document import Document, Picture
from graft.report.rendering.drawing import (
    INK,
    PANEL,
    arm_colour,
    figure_style,
    legend,
    series_keys,
    series_looks,
    to_svg,
)
from graft.report.study import WRITERS, write_document

Numbers = NDArray[np.float64]

_TEMPERATURES = (0.25, 0.5, 1, 2, 4, 8)
_KEYS = 64
_QUERIES = 1000
_BINS = 60
_EXPONENTS = (1.1, 1.5, 2.0)
_ELEMENTS = 10
_STEPS = 121


def softmax(logits: Numbers, temperature: float) -> Numbers:
    """Return weights [q, k] of logits [q, k]."""
    powers = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    return powers / powers.sum(-1, keepdims=True)


def linearised_softmax(logits: Numbers, temperature: float) -> Numbers:
    """Return the first two terms of softmax around equal logits, [q, k] (004, Appendix B)."""
    return (1 + (logits - logits.mean(-1, keepdims=True)) / temperature) / logits.shape[-1]


def linear(logits: Numbers, temperature: float) -> Numbers:
    """Return weights [q, k] of linear attention (paper 004, equation 6)."""
    return logits / temperature / logits.shape[-1]


FORMULAS: Mapping[str, Callable[[Numbers, float], Numbers]] = {
    "softmax": softmax,
    "linearised softmax": linearised_softmax,
    "linear": linear,
}


def ssa(values: Numbers, b: float, n: float) -> Numbers:
    """Return (1 + b |x|)^(sgn(x) n), which SSA has in place of e^x (paper 000, equation 5)."""
    return (1 + b * np.abs(values)) ** (np.sign(values) * n)


def power_series_entropy(ratios: Numbers, temperatures: Numbers) -> Numbers:
    """Return entropies [t, r] in nats of softmax of r^1, ..., r^10 (paper 001, section 3)."""
    logits = ratios[:, None] ** np.arange(1, _ELEMENTS + 1)
    weights = softmax(logits[None] / temperatures[:, None, None], 1)
    return -(weights * np.log(np.maximum(weights, np.finfo(float).tiny))).sum(-1)


def write_formulas(name: str, title: str, path: Path) -> None:
    """Write the figure of the item `name`, .html or .md; OutputError for another ending."""
    check_ending(path, WRITERS)
    caption, draw = FIGURES[name]
    picture = Picture(number=1, caption=caption, svg=draw())
    write_document(Document(title=title, blocks=[picture]), path)


def _draw_kernels() -> str:
    values = np.linspace(-3, 3, 301)
    with figure_style():
        figure = Figure(figsize=(2 * PANEL[0], 1.5 * PANEL[1]), layout="constrained")
        axes: Any = figure.subplots()
        for index, n in enumerate(_EXPONENTS):
            axes.plot(values, ssa(values, 1, n), color=arm_colour(index))
        axes.plot(values, np.exp(values), color=INK, linestyle=":", linewidth=1)
        axes.set_xlabel("x (dotted: the exponential)")
        legend(figure, series_keys(series_looks([f"n = {n:g}" for n in _EXPONENTS])))
        return to_svg(figure, "figure1")


def _draw_entropies() -> str:
    ratios, temperatures = ((0.0, 1.0), (1.0, 2.0)), ((0.02, 1.0), (1.0, 20.0))
    most = np.log(_ELEMENTS)
    with figure_style():
        figure = Figure(figsize=(2.4 * PANEL[0], 2.2 * PANEL[1]), layout="constrained")
        grid: Any = figure.subplots(2, 2)
        drawn: Any = None
        for row, heat in enumerate(temperatures[::-1]):
            for column, ratio in enumerate(ratios):
                axes, up = grid[row, column], np.geomspace(*heat, _STEPS)
                across = np.linspace(*ratio, _STEPS)
                entropy = power_series_entropy(across, up)
                drawn = axes.pcolormesh(across, up, entropy, vmin=0, vmax=most, rasterized=True)
                axes.set(yscale="log", xlabel="ratio of the series", ylabel="temperature")
        figure.colorbar(drawn, ax=grid, label="entropy (nats)")
        return to_svg(figure, "figure1")


def _draw_weights() -> str:
    logits = np.random.default_rng(0).standard_normal((_QUERIES, _KEYS))
    with figure_style():
        figure = Figure(figsize=(3 * PANEL[0], 2 * PANEL[1] + 0.5), layout="constrained")
        grid: Any = figure.subplots(2, 3)
        for axes, temperature in zip(grid.flat, _TEMPERATURES, strict=True):
            weights = {name: _KEYS * weigh(logits, temperature) for name, weigh in FORMULAS.items()}
            # softmax has a long tail, which is cut; 0 is an edge, below which it has nothing
            narrow = np.stack([weights["linearised softmax"], weights["linear"]])
            low, high = np.quantile(narrow, [0.001, 0.999])
            width = (high - low) / _BINS
            edges = width * np.arange(np.floor(low / width), np.ceil(high / width) + 1)
            for index, values in enumerate(weights.values()):
                heights, _ = np.histogram(values, edges)
                axes.stairs(heights, edges, color=arm_colour(index), linewidth=1.4)
            axes.axvline(1, color=INK, linestyle=":", linewidth=1)
            axes.set(title=f"temperature {temperature:g}", xlabel="weight x keys", yticks=[])
        legend(figure, series_keys(series_looks(list(FORMULAS))))
        return to_svg(figure, "figure1")


FIGURES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "000/figure-10": (
        "SSA's (1 + b |x|)^(sgn(x) n) for b = 1: for large x it grows like a power, for small x it falls like one.",
        _draw_kernels,
    ),
    "001/figure-5": (
        f"Entropy of softmax over {_ELEMENTS} powers of one number as logits, by that number and the temperature: "
        "the largest where all logits are equal, at 0 and at 1.",
        _draw_entropies,
    ),
    "004/figure-5": (
        f"Weights times the number of keys, {_KEYS}, of {_QUERIES:,} queries whose logits are standard normal, by "
        "temperature. Softmax and linearised softmax gather around equal weights, 1 (dotted), as it grows, linear "
        "attention around 0; at low temperatures linearised softmax has negative weights.",
        _draw_weights,
    ),
}
"""Item -> its caption, and the function that draws it."""
