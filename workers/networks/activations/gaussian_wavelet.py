"""The Gabor wavelet."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class GaussianWavelet(Activation):
    """cos(w x) exp(-(s x)^2), frequency w, sharpness s. Source: Saragadam et al. 2023, "WIRE"."""

    frequency: float = knob(1.0, low=0)
    sharpness: float = knob(1.0, low=0, open_low=True)

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return (self.frequency * values).cos() * (-(self.sharpness * values).square()).exp()
