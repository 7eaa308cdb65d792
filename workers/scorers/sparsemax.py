"""Attention by sparsemax: the closest point of the simplex."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.parameters import Parameters
from workers.scorers import LogitScorer
from workers.scorers._entmax import entmax


@dataclass(frozen=True, kw_only=True)
class Sparsemax(LogitScorer):
    """Weights [z - tau]_+, tau such that they sum to 1. Source: Martins and Astudillo 2016, equation 3."""

    def scored(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return entmax(logits, visible, 2.0)
