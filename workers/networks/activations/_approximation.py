"""Polynomials in place of another activation: cheaper on a GPU, where a spline's gathers are slow.

Legend: m points, n degree.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import knob, option, part, size
from spaces.records import Params
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Approximation(Activation):
    """A polynomial fitted to another activation on [low, high]; constant or zero beyond.

    The coefficients are linear in the other's values at m points: they follow it as it learns.
    Paper 002 has 0 beyond the range in Appendix F, and the value at the end in Listing 2.
    """

    degree: int = size(18, low=0)
    of: Activation = part(Activation, "spline")
    points: int = size(121, low=2)
    low: float = knob(-20.0)
    high: float = knob(20.0)
    beyond: str = option("constant", ("constant", "zero"))

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise PluginError(f"model.activation.low: {self.low:g} must be below model.activation.high {self.high:g}")
        if self.points <= self.degree:
            raise PluginError(
                f"model.activation.points: {self.points} must be above model.activation.degree {self.degree}"
            )
        if self.of.inputs != 1:
            raise PluginError("model.activation.of: a gated activation is no function of one number")

    def parameters(self) -> Mapping[str, Parameter]:
        return self.of.parameters()

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        unit = (2 * values - (self.low + self.high)) / (self.high - self.low)
        inside = self.evaluate(unit.clamp(-1, 1), self.coefficients(values, learned))
        return inside if self.beyond == "constant" else torch.where(unit.abs() <= 1, inside, 0)

    def coefficients(self, like: Tensor, learned: Parameters) -> Tensor:
        """Return [n + 1] in the type of `like`, constant term first, on [-1, 1]."""
        points, fit = (torch.tensor(array, device=like.device) for array in self.fit())
        there = (self.low + self.high) / 2 + (self.high - self.low) / 2 * points
        values = self.of.apply(there.to(like.dtype), learned)
        return (fit @ values.double()).to(like.dtype)

    def facts(self) -> Params:
        """Return the distances of `error` at the start of training."""
        mean, largest = _error_at_start(self)
        return {"approximation_error": mean, "largest_approximation_error": largest}

    def error(self, learned: Parameters, samples: int = 10_001) -> tuple[float, float]:
        """Return root mean square and largest distance to the other activation over the range."""
        like = next(iter(learned.values()), torch.zeros((), dtype=torch.float64))
        unit = torch.linspace(0, 1, samples, dtype=torch.float64)
        there = (self.low + (self.high - self.low) * unit).to(like)
        distance = (self.apply(there, learned) - self.of.apply(there, learned)).double()
        return float(distance.square().mean().sqrt()), float(distance.abs().max())

    @abstractmethod
    def fit(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return m points in [-1, 1], and the map [n + 1, m] from values there to coefficients."""

    @abstractmethod
    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        """Return the polynomial with `coefficients` [n + 1] at `unit` [...], all in [-1, 1]."""


@cache
def _error_at_start(approximation: Approximation) -> tuple[float, float]:
    """Compute the facts once for all trials that share them."""
    middle = torch.full((1, 1), 0.5, dtype=torch.float64)
    starts = {
        name: parameter.start.values(middle.expand(1, math.prod(parameter.shape)))[0]
        for name, parameter in approximation.parameters().items()
    }
    return approximation.error(starts)
