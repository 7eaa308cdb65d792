"""Learned non-linearities put into a configuration, frozen, as they are or in another form (paper 002, App. D, F)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from spaces.errors import PluginError
from spaces.records import Architecture

Form = Literal["spline", "symmetrised", "polynomial", "chebyshev"]
"""The spline itself, averaged with its mirror image, or a polynomial of degree 18 fitted to it where it moves."""
FORMS: tuple[Form, ...] = get_args(Form)
_COMPONENTS = {"mlp": ("model", "activation"), "attention": ("model", "scorer", "phi")}
"""Where in a configuration the spline of a component stands."""
_STILL = 1e-3
"""A spline moves where it leaves its end value by more than this share of its span."""


def with_frozen(config: Mapping[str, Any], architectures: Sequence[Architecture], form: Form) -> dict[str, Any]:
    """A copy of the configuration with the splines that a trial of it learned, frozen, in this form.

    Raises PluginError for a spline that learns and of which there is no architecture.
    """
    changed = copy.deepcopy(dict(config))
    for architecture in architectures:
        *way, last = _COMPONENTS[architecture.component]
        place: dict[str, Any] = changed
        for step in way:
            place = place[step]
        place[last] = _formed(place[last], architecture, form)
    for component, way in _COMPONENTS.items():
        spline = _at(config, way)
        known = any(architecture.component == component for architecture in architectures)
        if isinstance(spline, Mapping) and spline.get("name") == "spline" and not (known or spline.get("frozen")):
            raise PluginError(f"{'.'.join(way)}: a spline that learns, of which nothing was kept")
    return changed


def _at(config: Mapping[str, Any], way: Sequence[str]) -> Any:
    found: Any = config
    for step in way:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _formed(spline: Mapping[str, Any], architecture: Architecture, form: Form) -> dict[str, Any]:
    values = " ".join(f"{value:.9g}" for value in architecture.knots)  # nine digits tell float32 numbers apart
    whole = {"low": architecture.low, "high": architecture.high}
    given = {**spline, **whole, "start": "given", "values": values, "frozen": True}
    if form in ("spline", "symmetrised"):
        return {**given, "symmetrised": form == "symmetrised" and any(architecture.knots)}
    low, high = moving(architecture.knots, architecture.low, architecture.high)
    return {"name": form, "of": given, "low": low, "high": high}


def moving(knots: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Where the spline with these values from `low` to `high` is not constant; its whole range if it is nowhere."""
    least = _STILL * (max(knots) - min(knots))
    left = [place for place, value in enumerate(knots) if abs(value - knots[0]) > least]
    right = [place for place, value in enumerate(knots) if abs(value - knots[-1]) > least]
    spacing = (high - low) / (len(knots) - 1)
    return (low + (left[0] - 1) * spacing, low + (right[-1] + 1) * spacing) if left else (low, high)
