"""Softmax at the temperature that paper 004 estimates from logits alone (Appendix J)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class EstimatedSoftmax(LogitScorer):
    """exp(z / temperature) with its own temperature for each head and sequence, in self-attention.

    It is `factor`, which the paper leaves open, times the second moment of logits between two
    positions over the mean logit of a position with itself, over all positions of the sequence;
    each row is taken from its mean, and 1 stands for a ratio that is not positive. What fills up a
    shorter sequence is left out if attention is masked there; behind the end of a causal model's
    sequence it is not, and counts as positions.
    """

    factor: float = 1.0

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        first, second = moments(logits, visible)
        return masked_softmax(logits / positive_or_one(self.factor * second / first), visible)


def positive_or_one(ratio: Tensor) -> Tensor:
    """Return the ratio where it is a positive number, and 1 elsewhere."""
    return torch.where((ratio > 0) & ratio.isfinite(), ratio, 1)


def moments(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and second moment, as above, of logits [..., h, s, s]: [..., h, 1, 1] each."""
    diagonal = torch.eye(*logits.shape[-2:], dtype=torch.bool, device=logits.device) & visible
    is_given = diagonal.any(-1, keepdim=True)  # else the row is padding, which its own query does not see
    others = visible & ~diagonal & is_given
    mean = (logits * visible).sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
    centred = logits - mean
    return _mean_where(centred, diagonal), _mean_where(centred.square(), others)


def _mean_where(values: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean [..., h, 1, 1] of the wanted entries."""
    return (values * wanted).sum((-2, -1), keepdim=True) / wanted.sum((-2, -1), keepdim=True)
