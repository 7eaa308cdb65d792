"""The gated Gaussian error linear unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Gated
from workers.numerics.tensors import gelu


@dataclass(frozen=True, kw_only=True)
class Geglu(Gated):
    """GELU(a) * b, GELU in its exact form. Source: Shazeer 2020, equation 5."""

    def gate(self, values: Tensor) -> Tensor:
        return gelu(values)
