"""Softmax attention sharpened with the logarithm of the number of keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax, visible_keys
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class LengthScaledSoftmax(LogitScorer):
    """Weights proportional to exp(scale log(n) z), n the number of keys that the query sees.

    Attention keeps its sharpness as n grows. Source: Chiang and Cholak 2022, "Overcoming a
    Theoretical Limitation of Self-Attention", section 5.3 (scale 1).
    """

    scale: float = knob(1.0, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits * (self.scale * visible_keys(visible, logits).log()), visible)
