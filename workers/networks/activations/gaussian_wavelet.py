"""The Gabor wavelet."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class GaussianWavelet(Activation):
    """cos(w x) exp(-(s x)^2), a Gaussian of width 1 / s times a wave of frequency w, if not 0.

    Source: Saragadam et al. 2023, "WIRE", section 3, its real part.
    """

    frequency: float = knob(1.0, low=0)
    sharpness: float = knob(1.0, low=0, open_low=True)

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return (self.frequency * values).cos() * (-(self.sharpness * values).square()).exp()
