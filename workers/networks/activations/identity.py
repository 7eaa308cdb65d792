"""No non-linearity."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Identity(Activation):
    """x: the MLP is a linear map of low or full rank, the "Linear" of paper 002, Tables 5 and 6."""

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values
