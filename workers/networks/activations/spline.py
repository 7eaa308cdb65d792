"""A learned linear spline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins.fields import flag, knob, option, size, text
from workers.networks.activations import Activation
from workers.networks.activations._spline import interpolate, positions, symmetrise
from workers.numerics.parameters import Constant, Given, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Spline(Activation):
    """Straight lines between learned values at evenly spaced knots, constant beyond [low, high].

    The values are learned from their start, or `frozen`, as another trial learned them.
    `symmetrised` averages given values with their mirror image first (Appendix D). Source: paper
    002, section 2 and Appendices B and D. 121 knots on [-20, 20] are 1/3 apart, 361 are 1/9 apart:
    the two spacings of its Table 4 (its "122 points for a spacing of 1/3" is one too many).
    """

    knots: int = size(121, low=2)
    low: float = knob(-20.0)
    high: float = knob(20.0)
    start: str = option("gelu", ("gelu", "zero", "given"))
    values: str = text("", start=True)
    """With `start: given`: one number for each knot, with spaces between."""
    symmetrised: bool = flag(False)
    frozen: bool = flag(False)

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise PluginError(f"model.activation.low: {self.low:g} must be below model.activation.high {self.high:g}")
        if self.start != "given" and (self.values or self.symmetrised or self.frozen):
            raise PluginError(
                f"model.activation.start: {self.start!r} must be 'given' with values, symmetrised or frozen"
            )
        if self.start == "given" and len(self._start_values) != self.knots:
            raise PluginError(
                f"model.activation.values: {len(self._start_values)} numbers must be {self.knots}, one a knot"
            )

    def parameters(self) -> Mapping[str, Parameter]:
        start: Constant | Given = Constant(value=0)
        if self.start == "given":
            start = Given(numbers=self._start_values)
        elif self.start == "gelu":
            places: list[float] = positions(self.knots, self.low, self.high).tolist()
            start = Given(numbers=tuple(0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in places))
        knots = Parameter(shape=(self.knots,), start=start, decay=False, frozen=self.frozen, nonlinearity=True)
        return {"knots": knots}

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return interpolate(values, learned["knots"], self.low, self.high)

    @property
    def _start_values(self) -> tuple[float, ...]:
        """The given values; raises PluginError if they are no list of numbers."""
        given = f"model.activation.values: {shorten(self.values)!r}"
        try:
            numbers = tuple(map(float, self.values.split()))
        except ValueError as error:
            raise PluginError(f"{given} must be numbers") from error
        if not all(map(math.isfinite, numbers)) or (self.symmetrised and not any(numbers)):
            raise PluginError(f"{given} must be finite numbers, not all 0")
        exact = torch.tensor(numbers, dtype=torch.float64)
        return tuple(symmetrise(exact).knots.tolist()) if self.symmetrised else numbers
