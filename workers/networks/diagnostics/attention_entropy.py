"""The spread of attention over keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.diagnostics._heads import by_head, shares
from workers.networks.models import Attention


@dataclass(frozen=True, kw_only=True)
class AttentionEntropy(Diagnostic):
    """Shannon entropy in nats of a query's weights, mean over queries; by head and over all.

    Weights are divided by the sum of their absolute values, and all held at once;
    `workers.networks.entropy` streams softmax's. Source: paper 001, Figure 3 and equation 16.
    """

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        if not layers:
            return {}
        probabilities = [shares(layer.weights) for layer in layers]
        least = torch.finfo(probabilities[0].dtype).tiny  # 0 log 0 is 0
        entropies = [-(weights * weights.clamp(min=least).log()).sum(-1) for weights in probabilities]
        return by_head(entropies, batch)
