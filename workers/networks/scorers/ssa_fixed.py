"""Scaled signed averaging with fixed parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.networks.scorers._signed_averaging import bend
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class FixedSignedAveraging(LogitScorer):
    """Weights proportional to (1 + b |z|)^(sign(z) n); b = 1 / m, n = m tend to e^z for z >= 0.

    Source: paper 000, equation 5; the fixed n of 1.5 and 2 in its language experiments.
    """

    b: float = knob(1.0, low=0, open_low=True)
    n: float = knob(1.5, low=1)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(bend(logits, self.b, self.n), visible)
