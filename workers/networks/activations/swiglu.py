"""The gated SiLU."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Gated
from workers.numerics.tensors import logistic


@dataclass(frozen=True, kw_only=True)
class Swiglu(Gated):
    """a sigmoid(a) * b. Source: Shazeer 2020, equation 5, with beta = 1."""

    def gate(self, values: Tensor) -> Tensor:
        return values * logistic(values)
