"""Maps of a trained trial's attention (paper 000, Figure 2, and paper 001, Figures 2 and 7).

Legend: N sequences, h heads, q queries, k keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from graft.files import check_ending
from graft.report.rendering.document import Block, Document, Picture
from graft.report.rendering.drawing import figure_style, to_svg
from graft.report.rendering.formatting import number
from graft.report.study import WRITERS, write_document
from spaces.errors import StudyError

if TYPE_CHECKING:
    from workers.engine.trained_model import AttentionMaps

Numbers = NDArray[Any]

_KEYS = 16
"""Items of a set that are shown, those of the largest first number."""
_ACROSS = 4
_MOST_PANELS = 32
_LABELLED = 24
"""Positions up to which each is labelled with its number."""
_NAMELESS = "validation"


def write_maps(study: str, trial: int, maps: Mapping[str, AttentionMaps], sequence: int, path: Path) -> None:
    """Write the maps of a trial, by condition: of all sets, or of one sequence.

    Raises OutputError for an ending other than .html and .md; StudyError for a sequence that is
    not among those of the maps.
    """
    check_ending(path, WRITERS)
    blocks: list[Block] = []
    sets = {condition: attention for condition, attention in maps.items() if attention.layers[0].shape[2] == 1}
    if sets:
        caption = (
            f"Attention of the head on {len(next(iter(sets.values())).inputs)} sets, a row each: its "
            f"weights on the {_KEYS} items of the largest first number (of max retrieval the priority), "
            "the largest to the right. A head that finds the maximum is bright in the last column alone."
        )
        panels = [(condition or _NAMELESS, sort_sets(attention)) for condition, attention in sets.items()]
        svg = _draw(panels, lambda axes: axes.set(xticks=[], yticks=[]), 1)
        blocks.append(Picture(number=1, caption=caption, svg=svg))
    for condition, attention in maps.items():
        if condition not in sets:
            blocks.append(_sequence(condition, attention, sequence, len(blocks) + 1))
    write_document(Document(title=f"Attention of trial {trial} of {study}", blocks=blocks), path)


def sort_sets(attention: AttentionMaps) -> Numbers:
    """Return the head's weights [N, _KEYS] on the items of largest first number, in that order."""
    first = np.where(attention.given, attention.inputs[..., 0], -np.inf)
    order = np.argsort(first, axis=-1, kind="stable")[:, -_KEYS:]
    return np.take_along_axis(attention.layers[0].mean(1)[:, 0], order, axis=-1)


def _sequence(condition: str, attention: AttentionMaps, sequence: int, figure_number: int) -> Picture:
    if not 0 <= sequence < len(attention.inputs):
        raise StudyError(f"--sequence {sequence}: it must be 0 to {len(attention.inputs) - 1}")
    length = int(attention.given[sequence].sum())
    inputs = attention.inputs[sequence, :length]
    ticks = [number(float(value)) for value in inputs.reshape(length, -1)[:, 0]]
    caption = (
        f"Attention of each head on one sequence ({condition or _NAMELESS}, sequence {sequence}): rows are queries, "
        "columns keys, labelled with what is read there."
    )
    panels = [
        (f"layer {layer}, head {head}", weights[sequence, head, :length, :length])
        for layer, weights in enumerate(attention.layers)
        for head in range(weights.shape[1])
    ]
    if len(panels) > _MOST_PANELS:
        caption += f" The first {_MOST_PANELS} of {len(panels)} heads."

    def label(axes: Axes) -> None:
        shown = range(length) if length <= _LABELLED else range(0, length, -(-length // _LABELLED))
        axes.set_xticks(list(shown), [ticks[at] for at in shown], rotation=90, fontsize=6)
        axes.set_yticks(list(shown), [ticks[at] for at in shown], fontsize=6)

    return Picture(number=figure_number, caption=caption, svg=_draw(panels[:_MOST_PANELS], label, figure_number))


def _draw(panels: Sequence[tuple[str, Numbers]], label: Callable[[Axes], object], figure_number: int) -> str:
    """Draw panels in rows on one scale of shades, which has 0, 1 and every weight."""
    columns = min(_ACROSS, len(panels))
    rows = -(-len(panels) // columns)
    low = min(0.0, *(float(weights.min()) for _, weights in panels))
    high = max(1.0, *(float(weights.max()) for _, weights in panels))
    with figure_style():
        figure = Figure(figsize=(2.6 * columns + 0.8, 2.6 * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, squeeze=False)
        image: Any = None
        for axes, (title, weights) in zip(grid.flat, panels, strict=False):
            image = axes.imshow(weights, cmap="cividis", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
            axes.set_title(title, fontsize=9)
            axes.grid(visible=False)
            label(axes)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        figure.colorbar(image, ax=list(grid.flat), shrink=0.8)
        return to_svg(figure, f"figure{figure_number}")
