"""The task whether some number so far is positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.data.tasks._quantifier import Quantifier


@final
@dataclass(frozen=True, kw_only=True)
class Some(Quantifier):
    """True of x_1 ... x_i if any of them is positive. Source: paper 000, sections 3, 5, App. D."""

    def truth(self, positive: Tensor) -> Tensor:
        return positive.long().cumsum(-1) > 0
