"""An optimizer: one step of one trial, on all its parameters as one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.numerics.layout import Layout
from workers.training.optimizers import Moments, Optimizer, exact


@dataclass(frozen=True, kw_only=True)
class Example(Optimizer):
    """Moves each parameter by the rate, against the sign of an average of its gradients.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2, but
    without weight decay.
    """

    beta1: float = knob(0.9, low=0, high=1, open_high=True)
    beta2: float = knob(0.99, low=0, high=1, open_high=True)

    def start(self, parameters: Tensor, layout: Layout) -> Moments:
        return {"mean": parameters.new_zeros(parameters.shape)}

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        beta1, beta2 = (exact(beta).to(gradient.dtype) for beta in (self.beta1, self.beta2))
        mean = moments["mean"]
        direction = (beta1 * mean + (1 - beta1) * gradient).sign()
        after = parameters - rate.to(parameters.dtype) * direction
        return after, {"mean": beta2 * mean + (1 - beta2) * gradient}
