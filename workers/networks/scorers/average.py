"""Uniform attention: every visible key weighs the same."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.scorers import LogitScorer
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Average(LogitScorer):
    """Weights 1 / (number of visible keys), for any logits. Source: paper 003, equation 5."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        uniform = visible.to(logits.dtype) / visible.sum(-1, keepdim=True)
        return uniform.expand_as(logits)
