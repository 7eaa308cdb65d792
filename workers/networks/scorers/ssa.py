"""Scaled signed averaging with both parameters learned per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax, per_head
from workers.networks.scorers._signed_averaging import bend
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class SignedAveraging(LogitScorer):
    """Weights proportional to (1 + b |z|)^(sign(z) n), b > 0 and n >= 1 learned from `b` and `n`.

    Each head has its own. It grows as a power, not exponentially: one large logit cannot silence
    the rest. An optimizer's step out of the range is reflected: |b|, 1 + |n - 1|. Source: Naim et
    al., "Scaled Signed Averaging" (paper 000), equation 5; starts of Appendix B.
    """

    b: float = knob(1.0, low=0, open_low=True)
    n: float = knob(1.5, low=1)

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        starts = {"b": Constant(value=self.b), "n": Constant(value=self.n)}
        return {name: Parameter(shape=(heads,), start=start, decay=False) for name, start in starts.items()}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        b, n = per_head(learned["b"]), per_head(learned["n"])
        n = torch.where(n >= 1, n, 2 - n)  # with a slope at the bound itself, which |n - 1| lacks
        return masked_softmax(bend(logits, b.abs(), n), visible)
