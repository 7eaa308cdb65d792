"""Adam with weight decay as an L2 penalty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.fields import knob
from workers.optimizers import Moments, Optimizer, exact
from workers.optimizers.adamw import AdamW


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Kingma and Ba 2015, algorithm 1, with `weight_decay` times the parameters added to the gradient.

    In the order of operations of torch.optim.Adam: the penalty is added after the gradient's norm was clipped.
    """

    beta1: float = knob(0.9, low=0, high=1, open_high=True)
    beta2: float = knob(0.999, low=0, high=1, open_high=True)
    weight_decay: float = knob(0.0, low=0)
    epsilon: float = knob(1e-8, low=0, open_low=True)

    def start(self, parameters: Tensor) -> Moments:
        return {"first": torch.zeros_like(parameters), "second": torch.zeros_like(parameters)}

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, decays: Tensor
    ) -> tuple[Tensor, Moments]:
        decay = exact(self.weight_decay).to(parameters.dtype)
        plain = AdamW(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon, weight_decay=0.0)
        return plain.update(parameters, gradient + decay * decays * parameters, moments, rate, step, decays)
