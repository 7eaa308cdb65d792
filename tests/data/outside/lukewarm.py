"""A scorer with a knob and a learned temperature for each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax, per_head
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Lukewarm(LogitScorer):
    """Softmax at `floor` plus the square of what is learned."""

    floor: float = knob(0.5, low=0, open_low=True)

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        return {"heat": Parameter(shape=(heads,), start=Constant(value=1.0), decay=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits / (self.floor + per_head(learned["heat"]).square()), visible)
