"""The rectifier."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Relu(Activation):
    """max(x, 0). Source: Nair and Hinton 2010."""

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values.relu()
