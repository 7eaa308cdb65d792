"""A learned linear spline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.errors import PluginError
from spaces.fields import knob, option, size
from workers.activations import Activation
from workers.activations._spline import interpolated, positions
from workers.parameters import Constant, Given, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Spline(Activation):
    """Straight lines between learned values at evenly spaced knots, constant beyond the range [low, high].

    Source: paper 002, section 2 and Appendix B. 121 knots on [-20, 20] are 1/3 apart, 361 are 1/9 apart: the two
    spacings of its Table 4 (its "122 points for a spacing of 1/3" is one too many).
    """

    knots: int = size(121, low=2)
    low: float = knob(-20.0)
    high: float = knob(20.0)
    start: str = option("gelu", ("gelu", "zero"))

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise PluginError(f"model.activation.low: {self.low:g} must be below model.activation.high {self.high:g}")

    def parameters(self) -> Mapping[str, Parameter]:
        return {"knots": Parameter(shape=(self.knots,), start=self._start(), decay=False)}

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return interpolated(values, learned["knots"], self.low, self.high)

    def _start(self) -> Constant | Given:
        if self.start == "zero":
            return Constant(value=0)
        return Given(numbers=tuple(_gelu(x) for x in positions(self.knots, self.low, self.high).tolist()))


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
