"""Learned splines put into a model's configuration, frozen, or another function in their place.

Source: paper 002, Appendices D and F. Controllers and reports need this module: no torch here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from spaces.errors import PluginError
from spaces.records import Component, LearnedSpline

FORMS = ("spline", "symmetrised", "polynomial", "chebyshev", "polynomial_6", "polynomial_10", "polynomial_14")
"""The spline, itself or averaged with its image, or a polynomial of degree 18 or as in the name."""

PATHS: Sequence[tuple[Component, tuple[str, ...]]] = (
    ("mlp", ("activation",)),
    ("mlp", ("activation", "gate")),
    ("attention", ("scorer", "phi")),
)
"""The component and the field, in a model and its configuration, of a spline that layers share."""
_LEAST_CHANGE = 1e-3
"""A spline is active where it leaves its end value by more than this share of its span."""


def with_frozen_splines(model: Mapping[str, Any], learned: Sequence[LearnedSpline], form: str) -> dict[str, Any]:
    """Return a copy of a model's configuration with a trial's learned splines, as one of FORMS.

    They are frozen. Raises PluginError for a spline that learns and is not among those learned.
    """
    changed = copy.deepcopy(dict(model))
    kept = {record.component: record for record in learned}
    for component, (*steps, last) in PATHS:
        section: Any = changed
        for step in steps:
            section = section.get(step) if isinstance(section, Mapping) else None
        spline = section.get(last) if isinstance(section, dict) else None
        if not isinstance(spline, Mapping) or spline.get("name") != "spline" or spline.get("frozen"):
            continue
        if component not in kept:
            field = ".".join(["model", *steps, last])
            raise PluginError(f"{field}: a spline that learns, of which nothing was kept")
        section[last] = _freeze(spline, kept[component], form)
    return changed


def _freeze(spline: Mapping[str, Any], learned: LearnedSpline, form: str) -> dict[str, Any]:
    values = " ".join(f"{value:.9g}" for value in learned.knots)  # exact for float32
    ends = {"low": learned.low, "high": learned.high}
    given = {**spline, **ends, "start": "given", "values": values, "frozen": True}
    if form in ("spline", "symmetrised"):
        # The plug-in refuses to symmetrise a spline of zeros, which is symmetric already.
        return {**given, "symmetrised": form == "symmetrised" and any(learned.knots)}
    low, high = active_range(learned.knots, learned.low, learned.high)
    name, _, degree = form.partition("_")
    fitted = {"name": name, "of": given, "low": low, "high": high}
    return fitted | {"degree": int(degree)} if degree else fitted


def active_range(knots: Sequence[float], low: float, high: float) -> tuple[float, float]:
    """Return the range where a spline with these values on [low, high] changes; else all of it."""
    least = _LEAST_CHANGE * (max(knots) - min(knots))
    left = [index for index, value in enumerate(knots) if abs(value - knots[0]) > least]
    right = [index for index, value in enumerate(knots) if abs(value - knots[-1]) > least]
    spacing = (high - low) / (len(knots) - 1)
    return (low + (left[0] - 1) * spacing, low + (right[-1] + 1) * spacing) if left else (low, high)
