"""Scorers: with which weights attention mixes values.

`logits` [..., h, q, k] are query . key / sqrt(c) and what positions add; `visible` is true where a query sees a key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, pi, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from graft.scripts.pieces.parameters import Parameter, Values, start_constant, under, within
from graft.scripts.pieces.parts import build


class Scorer:
    """Most look at logits alone and define `score`."""

    one_for_all: ClassVar[bool] = False
    """Whether all layers share what it learns."""

    def parameters(self, heads: int) -> dict[str, Parameter]:
        """What it learns in a layer."""
        return {}

    def evaluations(self) -> dict[str, Scorer]:
        """Label -> the scorer in its place when the model is evaluated."""
        return {"": self}

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, own: Values) -> Tensor:
        """[..., h, q, k], 0 where nothing is seen."""
        logits = query @ key.mT / sqrt(query.shape[-1])
        return self.score(logits if bias is None else logits + bias, visible, own)

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        """The weights of logits."""
        raise NotImplementedError


def soften(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the keys that are seen."""
    return logits.masked_fill(~visible, float("-inf")).softmax(-1)


def count_keys(visible: Tensor, logits: Tensor) -> Tensor:
    """[..., q, 1] how many keys each query sees."""
    return visible.sum(-1, keepdim=True).to(logits.dtype)


def hide(weights: Tensor, visible: Tensor) -> Tensor:
    """Weights with 0 for the keys that are not seen."""
    return weights.masked_fill(~visible, 0.0)


@dataclass(kw_only=True)
class SoftmaxScorer(Scorer):
    """exp(z / temperature) over its sum."""

    temperature: float

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return soften(logits / self.temperature, visible)


@dataclass(kw_only=True)
class SoftmaxLearnedScorer(Scorer):
    """Softmax with a temperature for each head, learned as its logarithm."""

    temperature: float

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return {"log_temperature": Parameter((heads,), start_constant(log(self.temperature)), decays=False)}

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return soften(logits / own["log_temperature"].exp()[:, None, None], visible)


@dataclass(kw_only=True)
class SoftmaxEvaluationScorer(Scorer):
    """Softmax in training, with a temperature when it is evaluated (paper 004, section 4)."""

    temperature: float
    temperatures: str

    def evaluations(self) -> dict[str, Scorer]:
        others: dict[str, Scorer] = {
            f"temperature={text}": SoftmaxScorer(temperature=float(text)) for text in self.temperatures.split()
        }
        return {"": SoftmaxScorer(temperature=self.temperature), "scorer=trained": self, **others}

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return soften(logits, visible)


@dataclass(kw_only=True)
class AdaptiveTemperatureScorer(Scorer):
    """Softmax of beta z, beta a polynomial of the weights' entropy, at least 1 (paper 001, Figure 4)."""

    phase: str
    threshold: float
    a4: float
    a3: float
    a2: float
    a1: float
    a0: float

    def evaluations(self) -> dict[str, Scorer]:
        if self.phase == "always":
            return {"": self}
        return {"": replace(self, phase="always"), "scorer=trained": self}

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        plain = soften(logits, visible)
        if self.phase == "evaluation":
            return plain
        entropy = -(plain * (plain + 1e-9).log()).sum(-1, keepdim=True)
        coefficients = (self.a0, self.a1, self.a2, self.a3, self.a4)
        beta = torch.stack([number * entropy**power for power, number in enumerate(coefficients)]).sum(0)
        return soften(logits * torch.where(entropy > self.threshold, beta.clamp(min=1), 1), visible)


@dataclass(kw_only=True)
class LengthScaledSoftmaxScorer(Scorer):
    """Softmax of scale log(n) z, n the keys that are seen."""

    scale: float

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return soften(self.scale * count_keys(visible, logits).log() * logits, visible)


@dataclass(kw_only=True)
class NormSoftmaxScorer(Scorer):
    """Softmax of z / min(1, sigma), sigma the logits' standard deviation over the keys that are seen."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        count = count_keys(visible, logits)
        mean = hide(logits, visible).sum(-1, keepdim=True) / count
        variance = hide((logits - mean) ** 2, visible).sum(-1, keepdim=True) / count
        return soften((logits - mean) / (variance + 1e-12).sqrt().clamp(max=1), visible)


@dataclass(kw_only=True)
class SaSoftmaxScorer(Scorer):
    """Softmax times the place of the logit in the range of its row and 0."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        seen = hide(logits, visible)
        low, high = seen.amin(-1, keepdim=True).clamp(max=0), seen.amax(-1, keepdim=True).clamp(min=0)
        return soften(logits, visible) * (seen - low) / (high - low).clamp(min=1e-10)


@dataclass(kw_only=True)
class AverageScorer(Scorer):
    """The same weight for each key."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return (visible.to(logits.dtype) / count_keys(visible, logits)).expand_as(logits)


@dataclass(kw_only=True)
class LinearScorer(Scorer):
    """z / (temperature n)."""

    temperature: float

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return hide(logits / self.temperature / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class LinearisedSoftmaxScorer(Scorer):
    """(1 + (z - mean z) / temperature) / n."""

    temperature: float

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        count = count_keys(visible, logits)
        mean = hide(logits, visible).sum(-1, keepdim=True) / count
        return hide((1 + (logits - mean) / self.temperature) / count, visible)


@dataclass(kw_only=True)
class PolynomialScorer(Scorer):
    """z^power over the root of the number of keys."""

    power: int
    keys: str

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        count = count_keys(visible, logits) if self.keys == "visible" else torch.tensor(float(visible.shape[-1]))
        return hide(logits**self.power / count.sqrt(), visible)


@dataclass(kw_only=True)
class SigmoidScorer(Scorer):
    """The logistic function of z - log n."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return hide(torch.sigmoid(logits - count_keys(visible, logits).log()), visible)


@dataclass(kw_only=True)
class ReluScorer(Scorer):
    """max(z, 0) / n."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return hide(logits.relu() / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class SquareScorer(Scorer):
    """z^2 / n."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return hide(logits**2 / count_keys(visible, logits), visible)


@dataclass(kw_only=True)
class TanhScorer(Scorer):
    """tanh(z) / n."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
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

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
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

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        b, n = own["b"][:, None, None], own["n"][:, None, None]
        return average_signed(logits, visible, b.abs(), torch.where(n >= 1, n, 2 - n))


def entmax(logits: Tensor, visible: Tensor, alpha: Tensor | float) -> Tensor:
    """[1 + a (z - t)]_+ ^ (1 / a), a = alpha - 1, with the t for which a row sums to 1 (Peters et al. 2019, eq. 6).

    t is found by bisection, without a gradient; a step of Newton's method from there has that of the implicit function.
    """
    z = logits.double().masked_fill(~visible, -1e30)
    z = torch.where(visible, z - z.amax(-1, keepdim=True).detach(), -1e30)
    a = torch.as_tensor(alpha).double().clamp(min=1 + 1e-6) - 1

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

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return entmax(logits, visible, self.alpha)


@dataclass(kw_only=True)
class EntmaxLearnedScorer(Scorer):
    """Entmax with alpha = 1 + sigmoid(learned) in each head."""

    alpha: float

    def parameters(self, heads: int) -> dict[str, Parameter]:
        start = log((self.alpha - 1) / (2 - self.alpha))
        return {"alpha": Parameter((heads,), start_constant(start), decays=False)}

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        return entmax(logits, visible, 1 + own["alpha"].sigmoid()[:, None, None])


@dataclass(kw_only=True)
class SparsemaxScorer(Scorer):
    """The point of the simplex next to the logits: [z - tau]_+, tau by sorting (Martins and Astudillo 2016)."""

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        hidden = logits.masked_fill(~visible, -1e30)
        ordered = hidden.sort(-1, descending=True).values
        rank = torch.arange(1, ordered.shape[-1] + 1)
        support = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        tau = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
        return (hidden - tau).clamp(min=0)


@dataclass(kw_only=True)
class CosformerScorer(Scorer):
    """relu(q) . relu(k) times the cosine of their distance, over the sum; m is the larger of both numbers."""

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, own: Values) -> Tensor:
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

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, own: Values) -> Tensor:
        form = within("phi", own)
        kernel = hide(self.phi.apply(query, form) @ self.phi.apply(key, form).mT, visible)
        total = kernel.sum(-1, keepdim=True)
        return kernel / torch.where(total < 0, total.clamp(max=-1e-6), total.clamp(min=1e-6))


@dataclass(kw_only=True)
class MixedScorer(Scorer):
    """One scorer for the first heads and another for the rest."""

    first: Any
    second: Any
    first_heads: int

    def __post_init__(self) -> None:
        self.first, self.second = (
            one if isinstance(one, Scorer) else build("scorer", one) for one in (self.first, self.second)
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

    def score(self, logits: Tensor, visible: Tensor, own: Values) -> Tensor:
        first = self.split(logits.shape[-3])
        one = self.first.score(logits[..., :first, :, :], visible, within("first", own))
        other = self.second.score(logits[..., first:, :, :], visible, within("second", own))
        return torch.cat([one, other], -3)
