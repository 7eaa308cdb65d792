"""Optimizers, tensor by tensor; second moments are float64, since 1 - beta2 may be 1e-8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1, log, sqrt
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values
from tests.oracles.pieces.parts import build

Moments = Mapping[str, Mapping[str, Tensor]]
"""Name of a moment -> that of each parameter."""


@dataclass(kw_only=True)
class Optimizer:
    """The gradient is clipped to a norm over all tensors, then each tensor takes its step."""

    learning_rate: float
    schedule: Any
    clip_norm: float

    def __post_init__(self) -> None:
        self.schedule = build("schedule", self.schedule)

    def start(self, values: Values) -> Moments:
        """Moments before the first step."""
        raise NotImplementedError

    def descend(
        self, shapes: Mapping[str, Parameter], values: Values, gradients: Values, moments: Moments, n: int, steps: float
    ) -> tuple[Values, Moments]:
        """Values and moments after update n; `gradients` are those of all that learns, frozen tensors stay."""
        norm = torch.sqrt(torch.stack([gradient.double().square().sum() for gradient in gradients.values()]).sum())
        factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1)
        rate = self.learning_rate * self.schedule.factor(n, steps)
        after, changed = dict(values), {kind: dict(named) for kind, named in moments.items()}
        for name, gradient in gradients.items():
            state = {kind: named[name] for kind, named in moments.items()}
            clipped = gradient * factor.to(gradient.dtype)
            after[name], state = self.update(shapes[name], values[name], clipped, state, rate, n)
            for kind, tensor in state.items():
                changed[kind][name] = tensor
        return after, changed

    def update(
        self, shape: Parameter, value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int
    ) -> tuple[Tensor, Values]:
        """One tensor and its moments after update n."""
        raise NotImplementedError


@dataclass(kw_only=True)
class SgdOptimizer(Optimizer):
    """Momentum as in torch.optim.SGD, weight decay as a penalty."""

    momentum: float
    weight_decay: float
    nesterov: bool

    def start(self, values: Values) -> Moments:
        return {"buffer": {name: torch.zeros_like(value) for name, value in values.items()}}

    def update(
        self, shape: Parameter, value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int
    ) -> tuple[Tensor, Values]:
        gradient = gradient + self.weight_decay * shape.decays * value
        buffer = self.momentum * moments["buffer"] + gradient
        direction = gradient + self.momentum * buffer if self.nesterov else buffer
        return value - rate * direction, {"buffer": buffer}


def step_by_moments(
    value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int, betas: tuple[float, float], epsilon: float
) -> tuple[Tensor, Values]:
    """Adam's step (Kingma and Ba 2015, algorithm 1)."""
    beta1, beta2 = betas
    first = moments["first"] + (1 - beta1) * (gradient - moments["first"])
    second = moments["second"] + (1 - beta2) * (gradient.double() ** 2 - moments["second"])
    corrections = [1.0 if beta == 0 else -expm1((n + 1) * log(beta)) for beta in betas]
    scale = (second / corrections[1]).sqrt().to(value.dtype) + epsilon
    return value - rate / corrections[0] * first / scale, {"first": first, "second": second}


def start_moments(values: Values) -> Moments:
    """Adam's moments before the first step."""
    return {
        "first": {name: torch.zeros_like(value) for name, value in values.items()},
        "second": {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()},
    }


@dataclass(kw_only=True)
class AdamOptimizer(Optimizer):
    """Weight decay as a penalty, added to the clipped gradient."""

    beta1: float
    beta2: float
    weight_decay: float
    epsilon: float

    def start(self, values: Values) -> Moments:
        return start_moments(values)

    def update(
        self, shape: Parameter, value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int
    ) -> tuple[Tensor, Values]:
        gradient = gradient + self.weight_decay * shape.decays * value
        return step_by_moments(value, gradient, moments, rate, n, (self.beta1, self.beta2), self.epsilon)


@dataclass(kw_only=True)
class AdamwOptimizer(Optimizer):
    """Weights shrink by rate times decay (Loshchilov and Hutter 2019, algorithm 2)."""

    beta1: float
    beta2: float
    weight_decay: float
    epsilon: float

    def start(self, values: Values) -> Moments:
        return start_moments(values)

    def update(
        self, shape: Parameter, value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int
    ) -> tuple[Tensor, Values]:
        value = value * (1 - rate * self.weight_decay * shape.decays)
        return step_by_moments(value, gradient, moments, rate, n, (self.beta1, self.beta2), self.epsilon)


@dataclass(kw_only=True)
class MuonOptimizer(Optimizer):
    """Orthogonalised momentum for maps between hidden channels, AdamW for all else (Jordan et al. 2024)."""

    beta1: float
    beta2: float
    weight_decay: float
    epsilon: float
    momentum: float
    nesterov: bool
    iterations: int
    adjustment: str
    other_rate: float

    def start(self, values: Values) -> Moments:
        return {**start_moments(values), "buffer": {name: torch.zeros_like(value) for name, value in values.items()}}

    def update(
        self, shape: Parameter, value: Tensor, gradient: Tensor, moments: Values, rate: float, n: int
    ) -> tuple[Tensor, Values]:
        scaled_rate = rate if shape.matrices else rate * self.other_rate
        value = value * (1 - scaled_rate * self.weight_decay * shape.decays)
        if not shape.matrices:
            betas = (self.beta1, self.beta2)
            return step_by_moments(value, gradient, moments, scaled_rate, n, betas, self.epsilon)
        buffer = self.momentum * moments["buffer"] + (1 - self.momentum) * gradient
        direction = self.momentum * buffer + (1 - self.momentum) * gradient if self.nesterov else buffer
        turned = [self._turn(matrix) for matrix in direction.chunk(shape.matrices, -1)]
        return value - rate * torch.cat(turned, -1), {"buffer": buffer}

    def _turn(self, matrix: Tensor) -> Tensor:
        """Return the matrix with singular values of about 1, times what the rate is adjusted by."""
        inputs, outputs = matrix.shape
        longest, shortest = max(inputs, outputs), min(inputs, outputs)
        flat = matrix if inputs == shortest else matrix.T
        flat = flat / flat.norm().clamp(min=1e-7)
        for _ in range(self.iterations):
            gram = flat @ flat.T
            flat = 3.4445 * flat + (-4.7750 * gram + 2.0315 * gram @ gram) @ flat
        adjusted = 0.2 * sqrt(longest) if self.adjustment == "match_adamw" else sqrt(max(1.0, outputs / inputs))
        return adjusted * (flat if inputs == shortest else flat.T)
