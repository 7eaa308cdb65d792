"""NormSoftmax: logits divided by their own spread where that is smaller than the usual scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.scorers import LogitScorer, masked_softmax, visible_keys
from workers.numerics.parameters import Parameters

_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class NormSoftmax(LogitScorer):
    """softmax(s / min(sqrt(c), sigma)) of unscaled logits s, sigma their population's deviation.

    That is softmax(z / min(1, sigma_z)) of scaled logits z = s / sqrt(c), over visible keys; a
    single one has weight 1. Source: Jiang et al. 2023, "NormSoftmax", equation 4.
    """

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        count = visible_keys(visible, logits)
        mean = torch.where(visible, logits, 0).sum(-1, keepdim=True) / count
        centred = torch.where(visible, logits - mean, 0)
        variance = centred.square().sum(-1, keepdim=True) / count
        return masked_softmax(centred / (variance + _LEAST_VARIANCE).sqrt().clamp(max=1), visible)
