"""The task whether every number so far is positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.data.tasks._quantifier import Quantifier


@final
@dataclass(frozen=True, kw_only=True)
class Every(Quantifier):
    """True of x_1 ... x_i when all of them are positive. Source: paper 000, sections 3 and 5."""

    def truth(self, positive: Tensor) -> Tensor:
        return positive.long().cumprod(-1) == 1
