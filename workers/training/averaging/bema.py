"""Bias-corrected exponential moving average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.numerics.tensors import power
from workers.training.averaging import Averaging, Shadow, Variant
from workers.training.averaging.ema import update_average


@dataclass(frozen=True, kw_only=True)
class Bema(Averaging):
    """BEMA_n = a_n (theta_n - theta_0) + EMA_n, a_n = (rho + n)^-eta (paper 003, 4.5).

    Source: Block and Zhang, "EMA without the lag", 2025; EMA as in `ema`. a_n has the index of
    theta_n, b_n the one before. Good powers in paper 003 are 0.4 to 0.9 for kappa and 0.5 to 0.8
    for eta (6.2). At eta 0.2, the default up to version 6 of the numerics, it overshoots by a
    quarter of the way after 1,000 steps.
    """

    rho: float = knob(10.0, low=1)
    kappa: float = knob(0.5, low=0)
    eta: float = knob(0.6, low=0, earlier=(6, 0.2))

    @property
    def variants(self) -> Sequence[Variant]:
        return (Variant("bema"),)

    def start(self, parameters: Tensor) -> Shadow:
        return {"ema": parameters.double(), "initial": parameters}

    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        return {**shadow, "ema": update_average(shadow["ema"], parameters, self.rho, self.kappa, step)}

    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        return correct_bias(shadow["ema"], shadow, parameters, power(self.rho + step.double(), -self.eta))


def correct_bias(ema: Tensor, shadow: Shadow, parameters: Tensor, weight: Tensor) -> Tensor:
    """Return an average plus `weight` times the way from the initial parameters, as parameters."""
    return (weight * (parameters.double() - shadow["initial"].double()) + ema).to(parameters.dtype)
