"""Scorers with another function of the logits in the place of the exponential."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values, start_constant, under, within
from tests.oracles.pieces.parts import build
from tests.oracles.pieces.scorers.scorer import Scorer, count_keys, hide, soften


@dataclass(kw_only=True)
class AverageScorer(Scorer):
    """The same weight for each key."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return (visible.to(logits.dtype) / count_keys(visible, logits)).expand_as(logits)


@dataclass(kw_only=True)
class LinearScorer(Scorer):
    """z / (temperature n)."""

    temperature: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return hide(logits / self.temperature / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class LinearisedSoftmaxScorer(Scorer):
    """(1 + (z - mean z) / temperature) / n."""

    temperature: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        count = count_keys(visible, logits)
        mean = hide(logits, visible).sum(-1, keepdim=True) / count
        return hide((1 + (logits - mean) / self.temperature) / count, visible)


@dataclass(kw_only=True)
class PolynomialScorer(Scorer):
    """z^power over the root of the number of keys."""

    power: int
    keys: str

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        count = count_keys(visible, logits) if self.keys == "visible" else logits.new_tensor(visible.shape[-1])
        return hide(logits**self.power / count.sqrt(), visible)


@dataclass(kw_only=True)
class SigmoidScorer(Scorer):
    """The logistic function of z - log n."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return hide(torch.sigmoid(logits - count_keys(visible, logits).log()), visible)


@dataclass(kw_only=True)
class ReluScorer(Scorer):
    """max(z, 0) / n."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return hide(logits.relu() / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class SquareScorer(Scorer):
    """z^2 / n."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return hide(logits**2 / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class TanhScorer(Scorer):
    """tanh(z) / n."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return hide(logits.tanh() / count_keys(visible, logits), visible)


def average_signed(logits: Tensor, visible: Tensor, b: Tensor | float, n: Tensor | float) -> Tensor:
    """(1 + b |z|)^(sign(z) n) over its sum (paper 000, equation 5), as a softmax of its logarithm."""
    sign = torch.where(logits >= 0, 1.0, -1.0).to(logits.dtype)
    return soften(sign * n * torch.log1p(b * sign * logits), visible)


@dataclass(kw_only=True)
class SsaFixedScorer(Scorer):
    """Scaled signed averaging with the same b and n throughout."""

    b: float
    n: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return average_signed(logits, visible, self.b, self.n)


@dataclass(kw_only=True)
class SsaScorer(Scorer):
    """Scaled signed averaging; each head learns b and n, which are reflected into b > 0 and n >= 1."""

    b: float
    n: float

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return {
            "b": Parameter((heads,), start_constant(self.b), decays=False),
            "n": Parameter((heads,), start_constant(self.n), decays=False),
        }

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        b, n = learned["b"][:, None, None], learned["n"][:, None, None]
        return average_signed(logits, visible, b.abs(), torch.where(n >= 1, n, 2 - n))


@dataclass(kw_only=True)
class CosformerScorer(Scorer):
    """relu(q) . relu(k) times the cosine of their distance, over the sum; m is the larger of both numbers."""

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, learned: Values) -> Tensor:
        queries, keys = query.shape[-2], key.shape[-2]
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        cosine = torch.cos(pi / 2 * distance.double() / max(queries, keys)).to(query.dtype)
        kernel = hide(query.relu() @ key.relu().mT * cosine, visible)
        return kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)


@dataclass(kw_only=True)
class SplineKernelScorer(Scorer):
    """phi(q) . phi(k) over the sum, which is kept 1e-6 away from 0; all layers share phi."""

    one_for_all: ClassVar[bool] = True
    phi: Any

    def __post_init__(self) -> None:
        self.phi = build("activation", self.phi)

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return under("phi", self.phi.parameters())

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, learned: Values) -> Tensor:
        form = within("phi", learned)
        kernel = hide(self.phi.apply(query, form) @ self.phi.apply(key, form).mT, visible)
        total = kernel.sum(-1, keepdim=True)
        return kernel / torch.where(total < 0, total.clamp(max=-1e-6), total.clamp(min=1e-6))
