"""Softmax, and scorers that bend the logits before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values, start_constant
from tests.oracles.pieces.scorers.scorer import Scorer, count_keys, hide, soften


@dataclass(kw_only=True)
class SoftmaxScorer(Scorer):
    """exp(z / temperature) over its sum."""

    temperature: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return soften(logits / self.temperature, visible)


@dataclass(kw_only=True)
class SoftmaxLearnedScorer(Scorer):
    """Softmax with a temperature for each head, learned as its logarithm."""

    temperature: float

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return {"log_temperature": Parameter((heads,), start_constant(log(self.temperature)), decays=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return soften(logits / learned["log_temperature"].exp()[:, None, None], visible)


@dataclass(kw_only=True)
class EstimatedSoftmaxScorer(Scorer):
    """Softmax with a temperature from the moments of each sequence's logits, 1 where they give none (Appendix J)."""

    factor: float

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        seen = visible.expand(logits.shape)
        centred = (logits - logits.where(seen, 0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)).where(seen, 0)
        selves = centred.diagonal(dim1=-2, dim2=-1)
        count = seen.sum((-2, -1)) - selves.shape[-1]
        second = (centred.square().sum((-2, -1)) - selves.square().sum(-1)) / count
        estimate = (self.factor * second / selves.mean(-1))[..., None, None]
        return soften(logits / estimate.where((estimate > 0) & estimate.isfinite(), 1), visible)


@dataclass(kw_only=True)
class SoftmaxEvaluationScorer(Scorer):
    """Softmax in training, with a temperature when it is evaluated (paper 004, section 4)."""

    temperature: float
    temperatures: str
    estimated: bool
    factor: float

    def evaluations(self) -> dict[str, Scorer]:
        others: dict[str, Scorer] = {
            f"temperature={text}": SoftmaxScorer(temperature=float(text)) for text in self.temperatures.split()
        }
        if self.estimated:
            others["temperature=estimated"] = EstimatedSoftmaxScorer(factor=self.factor)
        return {"": SoftmaxScorer(temperature=self.temperature), "scorer=trained": self, **others}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
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

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
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

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        return soften(self.scale * count_keys(visible, logits).log() * logits, visible)


@dataclass(kw_only=True)
class NormSoftmaxScorer(Scorer):
    """Softmax of z / min(1, sigma), sigma the logits' standard deviation over the keys that are seen."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        count = count_keys(visible, logits)
        mean = hide(logits, visible).sum(-1, keepdim=True) / count
        variance = hide((logits - mean) ** 2, visible).sum(-1, keepdim=True) / count
        return soften((logits - mean) / (variance + 1e-12).sqrt().clamp(max=1), visible)


@dataclass(kw_only=True)
class SaSoftmaxScorer(Scorer):
    """Softmax times the place of the logit in the range of its row and 0."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        seen = hide(logits, visible)
        low, high = seen.amin(-1, keepdim=True).clamp(max=0), seen.amax(-1, keepdim=True).clamp(min=0)
        return soften(logits, visible) * (seen - low) / (high - low).clamp(min=1e-10)
