"""What diagnostics of attention share: values by head, and weights as shares.

Legend: N sequences, h heads, q queries, k keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.data.tasks import Batch, is_given


def by_head(layers: Sequence[Tensor], rows: Tensor) -> dict[str, Tensor]:
    """`layer=0 head=1` -> [N], and under the empty name their mean, of a value [N, h, q] of each query of a layer.

    `rows` [N, q] bool: the queries whose mean is taken; 0 where there are none.
    """
    counted = rows[:, None].to(layers[0].dtype)
    heads = [(values * counted).sum(-1) / counted.sum(-1).clamp(min=1) for values in layers]  # [N, h] each
    found = {"": torch.cat(heads, -1).mean(-1)}
    for layer, values in enumerate(heads):
        found |= {f"layer={layer} head={head}": values[:, head] for head in range(values.shape[1])}
    return found


def present(batch: Batch, queries: int) -> Tensor:
    """[N, q] bool: the queries within each sequence's length; a set has one."""
    return is_given(batch)[:, :queries]


def shares(weights: Tensor) -> Tensor:
    """Weights [..., k] as shares of attention, |w| / sum |w|: those of softmax as they are; 0 where all weights are."""
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)
