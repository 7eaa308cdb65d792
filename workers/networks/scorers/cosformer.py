"""cosFormer: rectified queries and keys, and a cosine of their distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.activations import Activation
from workers.networks.activations.relu import Relu
from workers.networks.scorers import KernelScorer
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class CosFormer(KernelScorer):
    """Weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 m)), over their sum over the visible keys.

    m is the larger of the numbers of queries and keys, also in causal attention, so that prefixes
    of longer sequences differ. A sum below 1e-6 counts as 1e-6: a query or key that is nowhere
    positive has weights 0. No division by sqrt(c). Source: Qin et al. 2022, equations 9 and 10.
    """

    @property
    def knows_distance(self) -> bool:
        return True

    @property
    def counts_all_keys(self) -> bool:
        return True

    @property
    def features(self) -> Activation:
        return Relu()

    def placing(self, queries: int, keys: int, device: torch.device) -> Tensor:
        rows, columns = (torch.arange(count, device=device) for count in (queries, keys))
        distance = (rows[:, None] - columns).double()
        return (math.pi / 2 * distance / max(queries, keys)).cos()

    def weigh(self, products: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        kernel = products.masked_fill(~visible, 0.0)
        return kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)
