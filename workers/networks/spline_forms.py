"""Other functions in place of a learned spline, after the fact: symmetrised, or a polynomial.

Plain numbers in and out. Source: paper 002, Appendices D and F. Legend: n knots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from workers.networks.activations._approximation import Approximation
from workers.networks.activations._spline import interpolate, positions, symmetrise
from workers.networks.activations.chebyshev import Chebyshev
from workers.networks.activations.polynomial import Polynomial
from workers.networks.activations.spline import Spline

FINER = 8
"""Points from one knot to the next."""

Range = tuple[float, float]

_POLYNOMIALS: Mapping[str, type[Approximation]] = {"polynomial": Polynomial, "chebyshev": Chebyshev}
FORMS = ("symmetrised", *_POLYNOMIALS)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A function that stands in for a spline."""

    name: str
    label: str
    """The name and what else distinguishes it: `polynomial of degree 18`."""
    values: tuple[float, ...]
    """[(n - 1) * FINER + 1] at evenly spaced points over the spline's range, both ends included."""
    error: float
    """The largest distance to the spline over these points."""

    @property
    def at_knots(self) -> tuple[float, ...]:
        """[n]."""
        return self.values[::FINER]


def form(name: str, knots: Sequence[float], whole: Range, moving: Range) -> Form:
    """Return the form `name`, one of FORMS, of the spline of values `knots` [n] over `whole`.

    Polynomials of the plug-ins' usual degree are fitted over `moving`, where the spline is not
    constant, and are constant beyond.
    """
    exact = torch.tensor(knots, dtype=torch.float64)
    points = positions((len(knots) - 1) * FINER + 1, *whole)
    if name in _POLYNOMIALS:
        spline = Spline(knots=len(knots), low=whole[0], high=whole[1])
        approximation = _POLYNOMIALS[name](low=moving[0], high=moving[1], of=spline)
        label = f"{name} of degree {approximation.degree}"
        values = approximation.apply(points, {"knots": exact})
    else:
        label, values = name, interpolate(points, symmetrise(exact).knots, *whole)
    error = (values - interpolate(points, exact, *whole)).abs().max()
    return Form(name=name, label=label, values=tuple(values.tolist()), error=float(error))
