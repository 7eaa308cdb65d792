"""Norms of token embeddings of a model (paper 000, Figure 8). Legend: v tokens, d width."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from graft.files import check_ending
from graft.report.rendering.document import Document, Picture, Table
from graft.report.rendering.drawing import PANEL, arm_colour, figure_style, legend, series_keys, series_looks, to_svg
from graft.report.rendering.formatting import number
from graft.report.study import WRITERS, write_document
from spaces.errors import StudyError

if TYPE_CHECKING:
    from workers.engine.trained_model import TrainedModel

Norms = NDArray[np.float64]

_BINS = (8, 40)
"""Fewest and most bins of the histogram; between them the root of the number of tokens."""


def norms_of(model: TrainedModel) -> dict[str, Norms]:
    """Return the norms [v] of `embedding` and, if it is another matrix, `unembedding`.

    Raises StudyError for a model that reads no tokens.
    """
    matrices = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    if "embedding" not in matrices:
        raise StudyError("this model reads no tokens: it has no embedding")
    norms = {"embedding": np.linalg.norm(matrices["embedding"], axis=1)}  # [v, d]
    if "unembedding" in matrices:
        norms["unembedding"] = np.linalg.norm(matrices["unembedding"], axis=0)  # [d, v]
    return norms


def write_norms(title: str, norms: Mapping[str, Norms], path: Path) -> None:
    """Write the figure and its numbers, .html or .md; raises OutputError for another ending."""
    check_ending(path, WRITERS)
    tokens = len(next(iter(norms.values())))
    caption = (
        f"Left: how many of the {tokens:,} tokens have a vector of this Euclidean norm. Right: the norms in order, the "
        "smallest first."
    )
    rows: list[list[str]] = []
    for name, values in norms.items():
        statistics = (values.mean(), values.std(), values.min(), np.median(values), values.max())
        rows.append([name, *(number(float(value)) for value in statistics)])
    header = ["Vectors", "Mean", "Deviation", "Least", "Median", "Largest"]
    about = f"Norms of the vectors of {tokens:,} tokens"
    table = Table(caption=about, header=header, rows=rows, labels=1)
    every = np.concatenate(list(norms.values()))
    edges = np.histogram_bin_edges(every, int(np.clip(len(every) ** 0.5, *_BINS)))
    with figure_style():
        figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.5), layout="constrained")
        axes: Any = figure.subplots(1, 2)
        for index, values in enumerate(norms.values()):
            look = {"color": arm_colour(index), "linewidth": 1.4}
            axes[0].stairs(np.histogram(values, edges)[0], edges, **look)
            axes[1].plot(np.arange(1, len(values) + 1), np.sort(values), **look)
        axes[0].set(xlabel="norm", ylabel="tokens", yscale="log")
        axes[0].set_ylim(bottom=0.7)
        axes[1].set(xlabel="tokens, in order of their norm", ylabel="norm")
        axes[1].set_ylim(bottom=0)
        if len(norms) > 1:
            legend(figure, series_keys(series_looks(list(norms))))
        picture = Picture(number=1, caption=caption, svg=to_svg(figure, "figure1"))
    write_document(Document(title=title, blocks=[table, picture]), path)
