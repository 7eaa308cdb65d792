"""Attention with tanh(z) for a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.networks.scorers._counted import Counted


@final
@dataclass(frozen=True, kw_only=True)
class Tanh(Counted):
    """Weights tanh(z) / n, n the number of visible keys. Source: paper 000, Appendix C."""

    def kernel(self, logits: Tensor) -> Tensor:
        return logits.tanh()
