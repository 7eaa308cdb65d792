"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import flag, knob
from workers.numerics.layout import Layout
from workers.training.optimizers import Moments, Optimizer, exact


@dataclass(frozen=True, kw_only=True)
class StochasticGradientDescent(Optimizer):
    """Momentum (Polyak 1964), or Nesterov's (Sutskever et al. 2013), with decay as an L2 penalty.

    In the form of torch.optim.SGD: the buffer is momentum * buffer + gradient, from the first
    gradient on, and the rate multiplies it; the penalty is added to the clipped gradient.
    """

    momentum: float = knob(0.9, low=0, high=1, open_high=True)
    weight_decay: float = knob(0.0, low=0)
    nesterov: bool = flag(False)

    def start(self, parameters: Tensor, layout: Layout) -> Moments:
        return {"buffer": torch.zeros_like(parameters)}

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        kind = parameters.dtype
        momentum, decay = (exact(value).to(kind) for value in (self.momentum, self.weight_decay))
        gradient = gradient + decay * layout.decays * parameters
        buffer = momentum * moments["buffer"] + gradient
        direction = gradient + momentum * buffer if self.nesterov else buffer
        return parameters - rate.to(kind) * direction, {"buffer": buffer}
