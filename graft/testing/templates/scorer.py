"""A scorer: with which weights attention mixes the values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Example(LogitScorer):
    """Weights proportional to exp(z / temperature), z the logits. Source: paper and equation."""

    temperature: float = knob(2.0, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        # Logits [..., heads, queries, keys]. No `if` on a knob: in a pack it is a trial's tensor.
        return masked_softmax(logits / self.temperature, visible)
