"""Attention by alpha-entmax with alpha learned per head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, per_head
from workers.networks.scorers._entmax import entmax
from workers.numerics.parameters import Constant, Parameter, Parameters
from workers.numerics.tensors import logistic


@dataclass(frozen=True, kw_only=True)
class LearnedEntmax(LogitScorer):
    """alpha-entmax with alpha = 1 + sigmoid(learned) in (1, 2) per head, starting at `alpha`.

    Source: Correia, Niculae and Martins 2019, "Adaptively Sparse Transformers", section 3.
    """

    alpha: float = knob(1.5, low=1, high=2, open_low=True, open_high=True)

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        start = Constant(value=math.log((self.alpha - 1) / (2 - self.alpha)))
        return {"alpha": Parameter(shape=(heads,), start=start, decay=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return entmax(logits, visible, 1 + logistic(per_head(learned["alpha"])))
