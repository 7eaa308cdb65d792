"""A scorer: with which weights attention mixes the values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Example(LogitScorer):
    """Weights proportional to exp(z / temperature), z the scaled logits. Source: name the paper and the equation."""

    temperature: float = knob(2.0, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        # Logits [..., heads, queries, keys]. A knob is a number here and a trial's own tensor in a pack: no `if` on it.
        return masked_softmax(logits / self.temperature, visible)
