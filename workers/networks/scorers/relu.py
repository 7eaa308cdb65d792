"""Attention with relu(z) for a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.networks.scorers._counted import Counted


@final
@dataclass(frozen=True, kw_only=True)
class Relu(Counted):
    """Weights relu(z) / n, n the number of visible keys. Source: paper 000, Appendix C."""

    def kernel(self, logits: Tensor) -> Tensor:
        return logits.relu()
