"""Sigmoid attention: every key is weighed by itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.scorers import LogitScorer, visible_keys
from workers.numerics.parameters import Parameters
from workers.numerics.tensors import logistic


@dataclass(frozen=True, kw_only=True)
class Sigmoid(LogitScorer):
    """Weights sigmoid(z - log n), n the number of keys that the query sees; rows need not sum to 1.

    A row of zero logits sums to about 1. Source: Ramapuram et al. 2024, "Theory, Analysis, and Best
    Practices for Sigmoid Self-Attention", section 3 (its n is the sequence's length).
    """

    @property
    def sums_to_one(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return logistic(logits - visible_keys(visible, logits).log()).masked_fill(~visible, 0.0)
