"""The gated rectifier."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.networks.activations import Gated


@dataclass(frozen=True, kw_only=True)
class Reglu(Gated):
    """max(a, 0) * b. Source: Shazeer 2020, equation 5."""

    def gate(self, values: Tensor) -> Tensor:
        return values.relu()
