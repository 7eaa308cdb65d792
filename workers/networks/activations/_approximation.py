"""Polynomials that stand in for another activation: cheaper on a GPU, where a spline's gathers are slow.

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

    The coefficients are a linear function of the other's values at m points, so that they follow it while it learns.
    Paper 002 (Appendix F) says that the polynomial is 0 beyond the range, and its Listing 2 keeps the value at the end.
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
        """[n + 1] in the precision of `like`, constant term first; on the range scaled to [-1, 1]."""
        points, fit = (torch.tensor(array, device=like.device) for array in self.fit())
        there = (self.low + self.high) / 2 + (self.high - self.low) / 2 * points
        values = self.of.apply(there.to(like.dtype), learned)
        return (fit @ values.double()).to(like.dtype)

    def facts(self) -> Params:
        """Return its distance from the other activation at the start: root mean square and largest, over the range."""
        mean, largest = _error_at_start(self)
        return {"approximation_error": mean, "largest_approximation_error": largest}

    def error(self, learned: Parameters, samples: int = 10_001) -> tuple[float, float]:
        """Root mean square and largest distance to the other activation, over evenly spaced samples of the range."""
        like = next(iter(learned.values()), torch.zeros((), dtype=torch.float64))
        there = (self.low + (self.high - self.low) * torch.linspace(0, 1, samples, dtype=torch.float64)).to(like)
        distance = (self.apply(there, learned) - self.of.apply(there, learned)).double()
        return float(distance.square().mean().sqrt()), float(distance.abs().max())

    @abstractmethod
    def fit(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the points [m] in [-1, 1] at which the other activation is evaluated, and the map [n + 1, m] from
        its values to coefficients.
        """

    @abstractmethod
    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        """Return the polynomial with `coefficients` [n + 1] at `unit` [...], all in [-1, 1]."""


@cache
def _error_at_start(approximation: Approximation) -> tuple[float, float]:
    """Once for all trials that have it."""
    middle = torch.full((1, 1), 0.5, dtype=torch.float64)
    starts = {
        name: parameter.start.values(middle.expand(1, math.prod(parameter.shape)))[0]
        for name, parameter in approximation.parameters().items()
    }
    return approximation.error(starts)
