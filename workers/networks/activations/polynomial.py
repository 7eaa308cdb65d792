"""A least-squares polynomial."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spaces.errors import PluginError
from workers.networks.activations._approximation import Approximation

HIGHEST = 20


@dataclass(frozen=True, kw_only=True)
class Polynomial(Approximation):
    """The least-squares polynomial of another activation at even points, by Horner's method.

    Source: paper 002, Appendix F. Powers of high degree nearly cancel near the ends, in float32
    beyond use from degree 21 on; `chebyshev` takes any degree.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree > HIGHEST:
            raise PluginError(
                f"model.activation.degree: {self.degree} must be at most {HIGHEST} for a polynomial in powers, whose "
                "terms cancel; choose chebyshev for more"
            )

    def fit(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        points = np.linspace(-1, 1, self.points)
        powers = np.vander(points, self.degree + 1, increasing=True)
        return points, np.linalg.pinv(powers).astype(np.float64)

    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        total = coefficients[-1].expand_as(unit)
        for power in range(self.degree - 1, -1, -1):
            total = total * unit + coefficients[power]
        return total
