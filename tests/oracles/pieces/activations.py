"""Activations: the non-linearity between the two maps of an MLP; `learned` is what they learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.parameters import Parameter, Values, start_constant, start_given
from tests.oracles.pieces.parts import build
from tests.oracles.pieces.streams import Floats


class Activation:
    """A function of each channel, or, gated, of a channel of the first half and its fellow of the second."""

    inputs: ClassVar[int] = 1

    def parameters(self) -> dict[str, Parameter]:
        """Return what it learns."""
        return {}

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        """[..., f] from [..., inputs f]."""
        raise NotImplementedError


@dataclass(kw_only=True)
class IdentityActivation(Activation):
    """x."""

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return values


@dataclass(kw_only=True)
class ReluActivation(Activation):
    """max(x, 0)."""

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return functional.relu(values)


@dataclass(kw_only=True)
class ReluSquaredActivation(Activation):
    """max(x, 0)^2."""

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return functional.relu(values) ** 2


@dataclass(kw_only=True)
class TanhActivation(Activation):
    """tanh(x)."""

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return torch.tanh(values)


@dataclass(kw_only=True)
class GeluActivation(Activation):
    """x Phi(x), or its form with tanh."""

    form: str

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return functional.gelu(values, approximate="tanh" if self.form == "tanh" else "none")


@dataclass(kw_only=True)
class GaussianWaveletActivation(Activation):
    """cos(w x) exp(-(s x)^2)."""

    frequency: float
    sharpness: float

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return torch.cos(self.frequency * values) * torch.exp(-((self.sharpness * values) ** 2))


@dataclass(kw_only=True)
class SincActivation(Activation):
    """sin(w x) / (w x)."""

    frequency: float

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return torch.sinc(self.frequency * values / torch.pi)


@dataclass(kw_only=True)
class GluActivation(Activation):
    """sigmoid(a) b."""

    inputs: ClassVar[int] = 2

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        return functional.glu(values.roll(values.shape[-1] // 2, -1))  # torch's gates by the second half


@dataclass(kw_only=True)
class RegluActivation(Activation):
    """max(a, 0) b."""

    inputs: ClassVar[int] = 2

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        first, second = values.chunk(2, -1)
        return functional.relu(first) * second


@dataclass(kw_only=True)
class GegluActivation(Activation):
    """GELU(a) b."""

    inputs: ClassVar[int] = 2

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        first, second = values.chunk(2, -1)
        return functional.gelu(first) * second


@dataclass(kw_only=True)
class SwigluActivation(Activation):
    """a sigmoid(a) b."""

    inputs: ClassVar[int] = 2

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        first, second = values.chunk(2, -1)
        return functional.silu(first) * second


@dataclass(kw_only=True)
class SplineActivation(Activation):
    """Straight lines between values at evenly spaced knots from `low` to `high`, constant beyond (paper 002, 2)."""

    knots: int
    low: float
    high: float
    start: str
    values: str
    symmetrised: bool
    frozen: bool

    def parameters(self) -> dict[str, Parameter]:
        return {"knots": Parameter((self.knots,), self._start(), decays=False, frozen=self.frozen, form=True)}

    def _start(self) -> Any:
        if self.start == "zero":
            return start_constant(0.0)
        if self.start == "given":
            given = np.array([float(text) for text in self.values.split()])
            return start_given(torch.from_numpy(symmetrise(given) if self.symmetrised else given))
        return start_given(functional.gelu(torch.linspace(self.low, self.high, self.knots, dtype=torch.float64)))

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        position = (values - self.low) * ((self.knots - 1) / (self.high - self.low))
        left = position.detach().nan_to_num(nan=0.0).clamp(0, self.knots - 2).floor().long()
        share = (position - left).clamp(0, 1)
        return learned["knots"][left] + share * learned["knots"].diff()[left]


@dataclass(kw_only=True)
class GatedActivation(Activation):
    """gate(a) b, the gate an activation of its own."""

    inputs: ClassVar[int] = 2
    gate: Any

    def __post_init__(self) -> None:
        self.gate = build("activation", self.gate)

    def parameters(self) -> dict[str, Parameter]:
        return {f"gate.{name}": parameter for name, parameter in self.gate.parameters().items()}

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        first, second = values.chunk(2, -1)
        return self.gate.apply(first, {name.removeprefix("gate."): tensor for name, tensor in learned.items()}) * second


def symmetrise(knots: Floats) -> Floats:
    """Return the mean of a spline and its image, reversed along x, y or both and moved to where they correlate best.

    Source: paper 002, Appendix D.
    """
    count, versions = len(knots), list[tuple[float, Floats]]()
    for image in (knots[::-1], -knots, -knots[::-1]):
        correlations = np.correlate(knots, image, mode="full")
        shift = int(correlations.argmax()) - (count - 1)
        moved = image[np.clip(np.arange(count) - shift, 0, count - 1)]
        versions.append((float(correlations.max()), (knots + moved) / 2))
    return max(versions, key=lambda version: version[0])[1]


@dataclass(kw_only=True)
class Approximation(Activation):
    """A polynomial on [low, high] fitted to another activation, which it follows while that learns."""

    degree: int
    of: Any
    points: int
    low: float
    high: float
    beyond: str

    def __post_init__(self) -> None:
        self.of = build("activation", self.of)

    def parameters(self) -> dict[str, Parameter]:
        return self.of.parameters()

    def apply(self, values: Tensor, learned: Values) -> Tensor:
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        points, fit = self.fit()
        seen = self.of.apply((middle + half * torch.from_numpy(points)).to(values.dtype), learned)
        coefficients = (torch.from_numpy(fit) @ seen.double()).to(values.dtype)
        unit = (values - middle) / half
        inside = self.evaluate(unit.clamp(-1, 1), coefficients)
        return inside if self.beyond == "constant" else inside * (unit.abs() <= 1)

    def fit(self) -> tuple[Floats, Floats]:
        """Points in [-1, 1], and the map from values there to coefficients."""
        raise NotImplementedError

    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        """Return the polynomial at numbers in [-1, 1]."""
        raise NotImplementedError


@dataclass(kw_only=True)
class PolynomialActivation(Approximation):
    """The least-squares polynomial over evenly spaced points, by Horner's method."""

    def fit(self) -> tuple[Floats, Floats]:
        points = np.linspace(-1, 1, self.points)
        basis = points[:, None] ** np.arange(self.degree + 1)
        return points, np.linalg.pinv(basis).astype(np.float64)

    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        total = coefficients[self.degree].expand_as(unit)
        for power in reversed(range(self.degree)):
            total = total * unit + coefficients[power]
        return total


@dataclass(kw_only=True)
class ChebyshevActivation(Approximation):
    """The first terms of the Chebyshev series, by Gauss-Chebyshev quadrature."""

    def fit(self) -> tuple[Floats, Floats]:
        points = np.cos(np.pi * (np.arange(self.points) + 0.5) / self.points)
        basis = np.polynomial.chebyshev.chebvander(points, self.degree)
        weights = np.where(np.arange(self.degree + 1) == 0, 1, 2) / self.points
        return points, weights[:, None] * basis.T

    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        before, last = torch.ones_like(unit), unit
        total = coefficients[0] * before
        for order in range(1, self.degree + 1):
            total = total + coefficients[order] * last
            before, last = last, 2 * unit * last - before
        return total
