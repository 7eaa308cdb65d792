"""Learned splines put into a model's configuration, frozen, as they are or as another function in their place.

Source: paper 002, Appendices D and F. No torch here: a controller and a report, which train nothing, need it too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from spaces.errors import PluginError
from spaces.records import Architecture

FORMS = ("spline", "symmetrised", "polynomial", "chebyshev")
"""The spline itself, averaged with its mirror image, or a polynomial of degree 18 fitted to it where it is active."""

_PATHS = {"mlp": ("activation",), "attention": ("scorer", "phi")}
"""Where in a model's configuration the spline of a component stands."""
_LEAST_CHANGE = 1e-3
"""A spline is active where it leaves its end value by more than this share of its span."""


def with_frozen_splines(model: Mapping[str, Any], learned: Sequence[Architecture], form: str) -> dict[str, Any]:
    """A copy of a model's configuration with the splines that a trial of it learned, frozen, as one of FORMS.

    Raises PluginError for a spline that learns and is not among those learned.
    """
    for component, path in _PATHS.items():
        spline: Any = model
        for step in path:
            spline = spline.get(step) if isinstance(spline, Mapping) else None
        learns = isinstance(spline, Mapping) and spline.get("name") == "spline" and not spline.get("frozen")
        if learns and all(architecture.component != component for architecture in learned):
            raise PluginError(f"model.{'.'.join(path)}: a spline that learns, of which nothing was kept")
    changed = copy.deepcopy(dict(model))
    for architecture in learned:
        *steps, last = _PATHS[architecture.component]
        section: dict[str, Any] = changed
        for step in steps:
            section = section[step]
        section[last] = _freeze(section[last], architecture, form)
    return changed


def _freeze(spline: Mapping[str, Any], architecture: Architecture, form: str) -> dict[str, Any]:
    values = " ".join(f"{value:.9g}" for value in architecture.knots)  # nine digits tell float32 numbers apart
    ends = {"low": architecture.low, "high": architecture.high}
    given = {**spline, **ends, "start": "given", "values": values, "frozen": True}
    if form in ("spline", "symmetrised"):
        # A spline that is 0 everywhere is its own mirror image, and the plug-in refuses to symmetrise it.
        return {**given, "symmetrised": form == "symmetrised" and any(architecture.knots)}
    low, high = active_range(architecture.knots, architecture.low, architecture.high)
    return {"name": form, "of": given, "low": low, "high": high}


def active_range(knots: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Where the spline with these values from `low` to `high` is not constant; its whole range if it is nowhere."""
    least = _LEAST_CHANGE * (max(knots) - min(knots))
    left = [index for index, value in enumerate(knots) if abs(value - knots[0]) > least]
    right = [index for index, value in enumerate(knots) if abs(value - knots[-1]) > least]
    spacing = (high - low) / (len(knots) - 1)
    return (low + (left[0] - 1) * spacing, low + (right[-1] + 1) * spacing) if left else (low, high)
