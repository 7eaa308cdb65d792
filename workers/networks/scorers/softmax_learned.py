"""Softmax attention whose temperature every head learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax, per_head
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class LearnedSoftmax(LogitScorer):
    """Weights proportional to exp(z / T), T = exp(learned) per head, starting at `temperature`.

    Learned as a logarithm, so that T stays positive whatever the optimizer does.
    """

    temperature: float = knob(1.0, low=0, open_low=True)

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        start = Constant(value=math.log(self.temperature))
        return {"log_temperature": Parameter(shape=(heads,), start=start, decay=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits * per_head(-learned["log_temperature"]).exp(), visible)
