"""Two moments of the gradient and the step that they give, for Adam and AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.numerics.layout import Layout
from workers.training.optimizers import Moments, Optimizer, exact


@dataclass(frozen=True, kw_only=True)
class TwoMoments(Optimizer):
    """Kingma and Ba 2015, algorithm 1, in the order of operations of torch.optim.

    Scalars and the second moment are float64: 1 - beta2 may be 1e-8 (paper 003, Table 1), where
    float32 would round beta2 to 1, the bias correction to 0, and most updates of the moment to
    nothing.
    """

    beta1: float = knob(0.9, low=0, high=1, open_high=True)
    beta2: float = knob(0.999, low=0, high=1, open_high=True)
    weight_decay: float = knob(0.0, low=0)
    epsilon: float = knob(1e-8, low=0, open_low=True)

    def start(self, parameters: Tensor, layout: Layout) -> Moments:
        return {"first": torch.zeros_like(parameters), "second": torch.zeros_like(parameters, dtype=torch.float64)}

    def adam_step(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor
    ) -> tuple[Tensor, Moments]:
        """Return parameters [P] after the step for this gradient [P], not decayed, and moments."""
        kind = parameters.dtype
        beta1, beta2, epsilon = (exact(value) for value in (self.beta1, self.beta2, self.epsilon))
        first = moments["first"] + (1 - beta1).to(kind) * (gradient - moments["first"])
        second = moments["second"] + (1 - beta2) * (gradient.double().square() - moments["second"])
        scale = second.to(kind).sqrt() / correction(beta2, step).sqrt().to(kind) + epsilon.to(kind)
        step_size = (rate / correction(beta1, step)).to(kind)
        return parameters - step_size * (first / scale), {"first": first, "second": second}


def correction(beta: Tensor, step: Tensor) -> Tensor:
    """Return 1 - beta^(step + 1), without cancellation if beta is close to 1; 1 if beta is 0."""
    return -torch.expm1((step + 1) * torch.log(beta))
