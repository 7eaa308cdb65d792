"""The hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Tanh(Activation):
    """tanh(x)."""

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values.tanh()
