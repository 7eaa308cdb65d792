"""A model's learned splines, as they are kept for other trials."""

from __future__ import annotations

from collections.abc import Iterator

from spaces.records import Component, LearnedSpline
from workers.networks.activations.spline import Spline
from workers.networks.frozen_splines import PATHS
from workers.networks.models import Model
from workers.numerics.parameters import Parameters


def kept_parameters(model: Model) -> set[str]:
    """Return the names of a model's parameters that hold its splines."""
    return {name for _, name, _ in _splines(model)}


def learned_splines(model: Model, parameters: Parameters) -> tuple[LearnedSpline, ...]:
    """Return the learned splines that all layers of a model share."""
    return tuple(
        LearnedSpline(
            component=component, low=float(spline.low), high=float(spline.high), knots=tuple(parameters[name].tolist())
        )
        for component, name, spline in _splines(model)
        if not spline.frozen and name in parameters
    )


def _splines(model: Model) -> Iterator[tuple[Component, str, Spline]]:
    """Yield component, name of the parameter of the knots, and spline."""
    for component, path in PATHS:
        part: object = model
        for field in path:
            part = getattr(part, field, None)
        if isinstance(part, Spline):
            yield component, f"{'.'.join(path)}.knots", part
