"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from spaces.plugins.fields import knob
from workers.numerics.layout import Layout
from workers.training.optimizers import Moments, exact
from workers.training.optimizers._moments import TwoMoments


@final
@dataclass(frozen=True, kw_only=True)
class AdamW(TwoMoments):
    """Adam with weights shrunk by rate times `weight_decay` (Loshchilov, Hutter 2019, alg. 2)."""

    weight_decay: float = knob(0.01, low=0)

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        decay = (rate * exact(self.weight_decay)).to(parameters.dtype)
        return self.adam_step(parameters * (1 - decay * layout.decays), gradient, moments, rate, step)
