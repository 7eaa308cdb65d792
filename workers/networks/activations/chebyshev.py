"""A Chebyshev series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workers.networks.activations._approximation import Approximation


@dataclass(frozen=True, kw_only=True)
class Chebyshev(Approximation):
    """The first terms of another activation's Chebyshev series, by Gauss-Chebyshev quadrature.

    Close to the best polynomial in the largest error, without ringing at the ends; m = n + 1 points
    interpolate. Evaluated by Clenshaw's recurrence. Proposed in paper 002, Appendix F; formulas:
    Mason and Handscomb 2003, "Chebyshev polynomials", sections 6.3 and 2.4.
    """

    def fit(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        angles = np.pi * (np.arange(self.points) + 0.5) / self.points
        series = 2 / self.points * np.cos(np.outer(np.arange(self.degree + 1), angles))
        series[0] /= 2
        return np.cos(angles), series

    def evaluate(self, unit: Tensor, coefficients: Tensor) -> Tensor:
        before, last = torch.zeros_like(unit), torch.zeros_like(unit)
        for order in range(self.degree, 0, -1):
            before, last = last, 2 * unit * last - before + coefficients[order]
        return unit * last - before + coefficients[0]
