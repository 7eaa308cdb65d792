"""Scorers that give most keys no weight at all."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values, start_constant
from tests.oracles.pieces.scorers.scorer import Scorer


def entmax(logits: Tensor, visible: Tensor, alpha: Tensor | float) -> Tensor:
    """[1 + a (z - t)]_+ ^ (1 / a), a = alpha - 1, with the t for which a row sums to 1 (Peters et al. 2019, eq. 6).

    t is found by bisection, without a gradient; a step of Newton's method from there has that of the implicit function.
    """
    z = logits.double().masked_fill(~visible, -1e30)
    z = torch.where(visible, z - z.amax(-1, keepdim=True).detach(), -1e30)
    a = torch.as_tensor(alpha, dtype=torch.float64).clamp(min=1 + 1e-6) - 1

    def power(t: Tensor, exponent: Tensor) -> Tensor:
        base = a * (z - t)
        inside = base > -1
        return torch.where(inside, (torch.log1p(torch.where(inside, base, 0.0)) * exponent).exp(), 0.0)

    with torch.no_grad():
        keys = torch.full_like(z[..., :1], z.shape[-1])
        low = torch.zeros_like(keys + a)
        high = low - torch.expm1(-a * keys.log()) / a
        for _ in range(100):
            middle = (low + high) / 2
            above = power(middle, 1 / a).sum(-1, keepdim=True) >= 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        t = (low + high) / 2
        slope = power(t, (1 - a) / a).sum(-1, keepdim=True)
    t = t + (power(t, 1 / a).sum(-1, keepdim=True) - 1) / slope
    broken = torch.where(visible, logits - logits, 0).sum(-1, keepdim=True)  # NaN in a row that is not finite
    return power(t, 1 / a).to(logits.dtype) + broken


@dataclass(kw_only=True)
class EntmaxScorer(Scorer):
    """Entmax with a fixed alpha."""

    alpha: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return entmax(logits, visible, self.alpha)


@dataclass(kw_only=True)
class EntmaxLearnedScorer(Scorer):
    """Entmax with alpha = 1 + sigmoid(learned) in each head."""

    alpha: float

    def parameters(self, heads: int) -> dict[str, Parameter]:
        start = log((self.alpha - 1) / (2 - self.alpha))
        return {"alpha": Parameter((heads,), start_constant(start), decays=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return entmax(logits, visible, 1 + learned["alpha"].sigmoid()[:, None, None])


@dataclass(kw_only=True)
class SparsemaxScorer(Scorer):
    """The point of the simplex next to the logits: [z - tau]_+, tau by sorting (Martins and Astudillo 2016)."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        hidden = logits.masked_fill(~visible, -1e30)
        ordered = hidden.sort(-1, descending=True).values
        rank = torch.arange(1, ordered.shape[-1] + 1)
        support = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        tau = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
        return (hidden - tau).clamp(min=0)
