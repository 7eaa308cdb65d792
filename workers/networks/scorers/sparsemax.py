"""Attention by sparsemax: the closest point of the simplex."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.scorers import LogitScorer
from workers.networks.scorers._entmax import entmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Sparsemax(LogitScorer):
    """Weights [z - tau]_+, tau for a sum of 1. Source: Martins and Astudillo 2016, equation 3."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return entmax(logits, visible, 2.0)
