"""Softmax attention to first order in its logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, visible_keys
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class LinearisedSoftmax(LogitScorer):
    """Weights (1 + (z - mean z) / temperature) / n over n visible keys; may be negative, sum to 1.

    The expansion of softmax(z / temperature) at z = 0. Source: Han et al. 2024; paper 004, app. B.
    """

    temperature: float = knob(1.0, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        count = visible_keys(visible, logits)
        shown = torch.where(visible, logits, 0)
        centred = shown - shown.sum(-1, keepdim=True) / count
        return ((1 + centred / self.temperature) / count).masked_fill(~visible, 0.0)
