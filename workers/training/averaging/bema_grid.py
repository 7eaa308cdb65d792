"""A grid of bias-corrected averages from one training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from spaces.plugins.fields import knob, size
from workers.numerics.tensors import power
from workers.training.averaging import Averaging, Shadow, Variant
from workers.training.averaging.bema import correct_bias
from workers.training.averaging.ema import update_average


@dataclass(frozen=True, kw_only=True)
class BemaGrid(Averaging):
    """BEMA for kappa 1/k, 2/k, .. 1 and eta 1/e, .. 1, k = `kappas`, e = `etas`, and plain EMAs.

    An eta needs no copy of the parameters: a grid of 10 by 10 costs 10 shadow copies and the
    initial parameters. Variants are `bema` under `kappa=0.3 eta=0.1` and `ema` under `kappa=0.3`.
    All are validated: 110 of them make a validation 111 times as long. Source: paper 003, 4.5 and
    6.
    """

    rho: float = knob(10.0, low=1)
    kappas: int = size(10, high=100)
    etas: int = size(10, high=100)

    @property
    def variants(self) -> Sequence[Variant]:
        kappas = [f"kappa={index / self.kappas:.3g}" for index in range(1, self.kappas + 1)]
        etas = [f"eta={index / self.etas:.3g}" for index in range(1, self.etas + 1)]
        corrected = [Variant("bema", f"{kappa} {eta}") for kappa, eta in product(kappas, etas)]
        return [*corrected, *(Variant("ema", kappa) for kappa in kappas)]

    def start(self, parameters: Tensor) -> Shadow:
        return {"ema": parameters.double().expand(self.kappas, -1).clone(), "initial": parameters}

    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        kappas = self.powers(parameters.device)
        return {**shadow, "ema": update_average(shadow["ema"], parameters, self.rho, kappas, step)}

    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        plain = index >= self.kappas * self.etas
        kappa = torch.where(plain, index - self.kappas * self.etas, index // self.etas)
        eta = (index % self.etas + 1).double() / self.etas
        weight = torch.where(plain, 0.0, power(self.rho + step.double(), -eta))
        return correct_bias(shadow["ema"].index_select(0, kappa.view(1))[0], shadow, parameters, weight)

    def powers(self, device: torch.device) -> Tensor:
        """Return every kappa, [k, 1] float64."""
        return torch.arange(1, self.kappas + 1, device=device).double()[:, None] / self.kappas
