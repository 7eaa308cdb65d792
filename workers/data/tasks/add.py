"""Decimal addition, written as people do."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks._addition import Addition


@dataclass(frozen=True, kw_only=True)
class Add(Addition):
    """1009+1092 gives 2101: highest digit first, so that a sum's first token needs all carries."""

    def write(self, numerals: Tensor) -> Tensor:
        return numerals.flip(-1)
