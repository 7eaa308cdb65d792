"""The gated linear unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Gated
from workers.numerics.tensors import logistic


@dataclass(frozen=True, kw_only=True)
class Glu(Gated):
    """sigmoid(a) * b. Source: Dauphin et al. 2017; Shazeer 2020, equation 4."""

    def gate(self, values: Tensor) -> Tensor:
        return logistic(values)
