"""Learned non-linearities put into a configuration, frozen, as they are or in another form (paper 002, App. D, F)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from spaces.records import Architecture

Form = Literal["spline", "symmetrised", "polynomial", "chebyshev"]
"""The spline itself, averaged with its mirror image, or a polynomial of degree 18 fitted to it where it moves."""
FORMS: tuple[Form, ...] = get_args(Form)
_COMPONENTS = {"mlp": ("model", "activation"), "attention": ("model", "scorer", "phi")}
"""Where in a configuration the spline of a component stands."""
_STILL = 1e-3
"""A spline moves where it leaves its end value by more than this share of its span."""


def with_frozen(config: Mapping[str, Any], architectures: Sequence[Architecture], form: Form) -> dict[str, Any]:
    """A copy of the configuration with the splines that a trial of it learned, frozen, in this form."""
    changed = copy.deepcopy(dict(config))
    for architecture in architectures:
        *way, last = _COMPONENTS[architecture.component]
        place: dict[str, Any] = changed
        for step in way:
            place = place[step]
        place[last] = _formed(place[last], architecture, form)
    return changed


def _formed(spline: Mapping[str, Any], architecture: Architecture, form: Form) -> dict[str, Any]:
    values = " ".join(f"{value:.9g}" for value in architecture.knots)  # nine digits tell float32 numbers apart
    whole = {"low": architecture.low, "high": architecture.high}
    given = {**spline, **whole, "start": "given", "values": values, "frozen": True}
    if form in ("spline", "symmetrised"):
        return {**given, "symmetrised": form == "symmetrised" and any(architecture.knots)}
    low, high = moving(architecture)
    return {"name": form, "of": given, "low": low, "high": high}


def moving(architecture: Architecture) -> tuple[float, float]:
    """Where the spline is not constant; its whole range if it is nowhere."""
    knots, last = architecture.knots, len(architecture.knots) - 1
    least = _STILL * (max(knots) - min(knots))
    left = next((place for place, value in enumerate(knots) if abs(value - knots[0]) > least), 1) - 1
    right = next((place for place in range(last, -1, -1) if abs(knots[place] - knots[-1]) > least), last - 1) + 1
    spacing = (architecture.high - architecture.low) / last
    if left >= right:
        return architecture.low, architecture.high
    return architecture.low + left * spacing, architecture.low + right * spacing
