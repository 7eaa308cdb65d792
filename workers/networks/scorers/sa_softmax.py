"""Self-adjusting softmax: softmax weights scaled by where the logit lies in its row's range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class SelfAdjustingSoftmax(LogitScorer):
    """softmax(z)_j (z_j - low) / (high - low), low = min(row, 0), high = max(row, 0); no sum of 1.

    A row of zero logits has weights 0 (the range is at least 1e-10). Source: Zheng et al. 2025,
    "Self-Adjust Softmax", equation 6; minimum and maximum are of the visible keys.
    """

    @property
    def sums_to_one(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        shown = torch.where(visible, logits, 0)  # zeros change neither min(row, 0) nor max(row, 0)
        low = shown.amin(-1, keepdim=True).clamp(max=0)
        high = shown.amax(-1, keepdim=True).clamp(min=0)
        return masked_softmax(logits, visible) * (shown - low) / (high - low).clamp(min=1e-10)
