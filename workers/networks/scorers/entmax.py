"""Attention by alpha-entmax, between softmax (alpha = 1) and sparsemax (2); sparse above 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer
from workers.networks.scorers._entmax import POWERS, entmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Entmax(LogitScorer):
    """Weights [(alpha - 1) z - tau]_+ ^ (1 / (alpha - 1)), with the tau for which they sum to 1.

    alpha = 1 is softmax. Source: Peters et al. 2019, "Sparse Sequence-to-Sequence Models", eq. 6.
    """

    SIMPLER: ClassVar[Mapping[str, Sequence[float]]] = {"alpha": tuple(POWERS)}
    EXAMPLES: ClassVar[Examples] = ({}, {"alpha": 1.0}, {"alpha": 2.0}, {"alpha": 3.0})

    alpha: float = knob(1.5, low=1, high=4)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return entmax(logits, visible, self.alpha)
