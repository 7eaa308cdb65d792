"""Softmax attention with a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Softmax(LogitScorer):
    """Weights proportional to exp(z / temperature). Source: Vaswani et al. 2017, section 3.2.1."""

    EXAMPLES: ClassVar[Examples] = ({}, {"temperature": 0.3})

    temperature: float = knob(1.0, low=0, open_low=True)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits / self.temperature, visible)
