"""cosFormer: rectified queries and keys, and a cosine of their distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.scorers import Scorer, wide
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class CosFormer(Scorer):
    """Weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 m)), divided by their sum over the visible keys.

    m is the larger of the numbers of queries and keys, also in causal attention, so that a prefix of a longer sequence
    is attended to differently. A sum below 1e-6 counts as that: a query or key that is nowhere positive has weights 0.
    No division by sqrt(c). Source: Qin et al. 2022, "cosFormer", equations 9 and 10.
    """

    @property
    def knows_distance(self) -> bool:
        return True

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        products = wide(query).relu() @ wide(key).relu().mT
        kernel = (products * _cosines(query, key).to(products.dtype)).masked_fill(~visible, 0.0)
        return (kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)).to(query.dtype)


def _cosines(query: Tensor, key: Tensor) -> Tensor:
    """[q, k] of the distances of queries and keys."""
    rows, columns = (torch.arange(part.shape[-2], device=part.device) for part in (query, key))
    distance = (rows[:, None] - columns).double()
    return (math.pi / 2 * distance / max(query.shape[-2], key.shape[-2])).cos()
