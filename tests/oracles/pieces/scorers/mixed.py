"""Two scorers in one, each for some of the heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values, under, within
from tests.oracles.pieces.parts import build
from tests.oracles.pieces.scorers.scorer import Scorer


@dataclass(kw_only=True)
class MixedScorer(Scorer):
    """One scorer for the first heads and another for the rest."""

    first: Any
    second: Any
    first_heads: int

    def __post_init__(self) -> None:
        self.first, self.second = (
            scorer if isinstance(scorer, Scorer) else build("scorer", scorer) for scorer in (self.first, self.second)
        )

    def split(self, heads: int) -> int:
        """How many heads have the first scorer."""
        return self.first_heads or (heads + 1) // 2

    def parameters(self, heads: int) -> dict[str, Parameter]:
        first = self.split(heads)
        return {
            **under("first", self.first.parameters(first)),
            **under("second", self.second.parameters(heads - first)),
        }

    def evaluations(self) -> dict[str, Scorer]:
        first, second = self.first.evaluations(), self.second.evaluations()
        return {
            label: MixedScorer(
                first=first.get(label, first[""]),
                second=second.get(label, second[""]),
                first_heads=self.first_heads,
            )
            for label in {**first, **second}
        }

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        first = self.split(logits.shape[-3])
        weights = self.first.weigh(logits[..., :first, :, :], visible, within("first", learned))
        other = self.second.weigh(logits[..., first:, :, :], visible, within("second", learned))
        return torch.cat([weights, other], -3)
