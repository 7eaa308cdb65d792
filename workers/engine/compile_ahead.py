"""All native libraries of the package, for a wheel built with `GRAFT_COMPILE=all`."""

from __future__ import annotations

from workers.networks.gradients import activating, scoring
from workers.numerics.native import building
from workers.numerics.native.building import Unit


def units() -> list[Unit]:
    """Return the steps, and the generated functions of all packaged scorers and activations."""
    return [*building.packaged_units(), *scoring.packaged_units(), *activating.packaged_units()]
