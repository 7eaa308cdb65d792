"""Functions that diagnostics of attention share: values by head, and weights as shares.

Legend: N sequences, h heads, q queries, k keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.data.tasks import Batch, is_given


def by_head(layers: Sequence[Tensor], batch: Batch, rows: Tensor | None = None) -> dict[str, Tensor]:
    """Return means [N] of values [N, h, q] of layers by head, `layer=0 head=1`, and of all.

    `rows` [N, q] bool: the queries to average, 0 without any; by default those that are given.
    """
    rows = is_given(batch)[:, : layers[0].shape[-1]] if rows is None else rows
    counted = rows[:, None].to(layers[0].dtype)
    heads = [(values * counted).sum(-1) / counted.sum(-1).clamp(min=1) for values in layers]
    means = {"": torch.cat(heads, -1).mean(-1)}
    for layer, values in enumerate(heads):
        means |= {f"layer={layer} head={head}": values[:, head] for head in range(values.shape[1])}
    return means


def shares(weights: Tensor) -> Tensor:
    """Return weights [..., k] as shares of attention, |w| / sum |w|; 0 where all weights are 0."""
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
