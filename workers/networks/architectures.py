"""The forms of non-linearities that a model has learned, as they are kept for other trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from spaces.records import Architecture
from workers.networks.activations.spline import Spline
from workers.networks.models import Model
from workers.networks.scorers.spline_kernel import SplineKernel
from workers.numerics.parameters import Parameters


def kept_parameters(model: Model) -> set[str]:
    """The parameters of a model that hold what is kept of it."""
    return {name for _, name, _ in _splines(model)}


def architectures(model: Model, parameters: Parameters) -> tuple[Architecture, ...]:
    """The splines that all layers of a model share and that learned, from its parameters by name."""
    return tuple(
        Architecture(
            component=component, low=float(spline.low), high=float(spline.high), knots=tuple(parameters[name].tolist())
        )
        for component, name, spline in _splines(model)
        if not spline.frozen and name in parameters
    )


def _splines(model: Model) -> Iterator[tuple[Literal["mlp", "attention"], str, Spline]]:
    activation, scorer = getattr(model, "activation", None), getattr(model, "scorer", None)
    if isinstance(activation, Spline):
        yield "mlp", "activation.knots", activation
    if isinstance(scorer, SplineKernel) and isinstance(scorer.phi, Spline):
        yield "attention", "scorer.phi.knots", scorer.phi
