"""All native libraries of the package compiled ahead, for a wheel: `python -m workers.engine.compile_ahead`."""

from __future__ import annotations

from workers.networks.gradients import activating, scoring
from workers.numerics.native import building, prebuilt
from workers.numerics.native.building import Unit


def units() -> list[Unit]:
    """Return the steps, and the generated functions of all packaged scorers and activations."""
    return [*building.packaged_units(), *scoring.packaged_units(), *activating.packaged_units()]


if __name__ == "__main__":
    for made in prebuilt.build(units()):
        print(made)
