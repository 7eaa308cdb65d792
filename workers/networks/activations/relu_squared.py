"""The squared rectifier."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class ReluSquared(Activation):
    """max(x, 0)^2. Source: So et al. 2021, "Primer", section 3."""

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values.relu().square()
