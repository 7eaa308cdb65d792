"""Softmax attention sharpened where its entropy is high."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.plugins import Examples, replace
from spaces.plugins.fields import knob, option
from spaces.records import TRAINED
from workers.networks.scorers import LogitScorer, Scorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class AdaptiveTemperature(LogitScorer):
    """softmax(beta z), beta = max(P(H), 1) where its entropy H is above `threshold` nats, else 1.

    H is the entropy of softmax(z), P(H) = a4 H^4 + a3 H^3 + a2 H^2 + a1 H + a0. `phase: evaluation`
    trains with plain softmax and sharpens in validation; `always` also in training, with gradients
    through beta. Source: Velickovic et al. 2024, "softmax is not enough" (paper 001), Figure 4,
    which is followed where equation 18 differs (P <= 0, H > 6.27). With its coefficients beta
    exceeds 1 only for 0.849 < H < 5.944; `search refit` finds others.
    """

    EXAMPLES: ClassVar[Examples] = ({}, {"phase": "always"})

    phase: str = option("evaluation", ("evaluation", "always"))
    threshold: float = knob(0.5, low=0)
    a4: float = knob(-0.037)
    a3: float = knob(0.481)
    a2: float = knob(-2.3)
    a1: float = knob(4.917)
    a0: float = knob(-1.791)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits, visible) if self.phase == "evaluation" else self.sharpen(logits, visible)

    def evaluations(self) -> Mapping[str, Scorer]:
        if self.phase == "always":
            return {"": self}
        return {"": replace(self, {"phase": "always"}), TRAINED: self}

    def sharpen(self, logits: Tensor, visible: Tensor) -> Tensor:
        probabilities = masked_softmax(logits, visible)
        entropy = -(probabilities * (probabilities + 1e-9).log()).sum(-1, keepdim=True)
        polynomial = (((self.a4 * entropy + self.a3) * entropy + self.a2) * entropy + self.a1) * entropy + self.a0
        beta = torch.where(entropy > self.threshold, polynomial.clamp(min=1), 1)
        return masked_softmax(logits * beta, visible)
