"""The sinc wavelet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Sinc(Activation):
    """sin(w x) / (w x), and 1 at 0.

    Near 0 it is its Taylor series: there the quotient's derivative is a difference of nearly equal
    numbers. Source: Saratchandran et al. 2024, "A sampling theory perspective on activations".
    """

    frequency: float = knob(1.0, low=0, open_low=True)

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        angles = values * self.frequency
        near = angles.abs() < _NEAR
        apart = torch.where(near, 1.0, angles)
        square = torch.where(near, angles, 0.0).square()
        series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
        return torch.where(near, series, apart.sin() / apart)


_NEAR = 0.05
"""Below it, four terms of the series are exact to 1e-16."""
