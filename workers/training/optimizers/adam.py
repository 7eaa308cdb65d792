"""Adam with weight decay as an L2 penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.numerics.layout import Layout
from workers.training.optimizers import Moments, exact
from workers.training.optimizers._moments import TwoMoments


@final
@dataclass(frozen=True, kw_only=True)
class Adam(TwoMoments):
    """Adam (Kingma and Ba 2015, algorithm 1); decay is a penalty, added to the clipped gradient."""

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        penalty = exact(self.weight_decay).to(parameters.dtype) * layout.decays * parameters
        return self.adam_step(parameters, gradient + penalty, moments, rate, step)
