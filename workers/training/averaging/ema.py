"""Exponential moving average with a decaying weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.numerics.tensors import power
from workers.training.averaging import Averaging, Shadow, Variant


@dataclass(frozen=True, kw_only=True)
class Ema(Averaging):
    """EMA_0 = theta_0; EMA_{n+1} = (1 - b_n) EMA_n + b_n theta_{n+1}, b_n = (rho + n)^-kappa.

    b_n has the index before theta_{n+1} (paper 003, 4.5). rho = kappa = 1 is the mean of theta_1 ..
    theta_n.
    """

    rho: float = knob(10.0, low=1)
    kappa: float = knob(0.5, low=0)

    @property
    def variants(self) -> Sequence[Variant]:
        return (Variant("ema"),)

    def start(self, parameters: Tensor) -> Shadow:
        return {"ema": parameters.double()}

    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        return {"ema": update_average(shadow["ema"], parameters, self.rho, self.kappa, step)}

    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        return shadow["ema"].to(parameters.dtype)


def update_average(ema: Tensor, parameters: Tensor, rho: float, kappa: float | Tensor, step: Tensor) -> Tensor:
    """Return the average after an update, float64, as float32 rounds weights below 1e-7 away."""
    return ema + decay_weight(rho, kappa, step) * (parameters.double() - ema)


def decay_weight(rho: float, kappa: float | Tensor, step: Tensor) -> Tensor:
    """Return the weight (rho + n)^-kappa of theta_{n+1}, float64."""
    return power(rho + step.double(), -kappa)
