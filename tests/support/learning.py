"""Settings of transfers' first stage."""

from __future__ import annotations

from typing import Any

SPLINE: dict[str, Any] = {"name": "spline", "knots": 9, "low": -1.0, "high": 1.0}
STEPS, MODELS, BATCH = 6, 3, 8


def settings(
    *,
    activation: dict[str, Any] | None = None,
    scorer: dict[str, Any] | None = None,
    learning: dict[str, Any] | None = None,
    dtype: str = "float64",
    steps: int = STEPS,
) -> dict[str, Any]:
    """Return a transformer of two layers on sums modulo 7."""
    return {
        "task": {"name": "add_mod", "modulus": 7},
        "model": {
            "name": "transformer",
            "depth": 2,
            "heads": 2,
            "width": 8,
            "scorer": scorer or {"name": "softmax"},
            "activation": activation or SPLINE,
        },
        "optimizer": {"name": "adamw", "learning_rate": 0.02, "weight_decay": 0.1, "clip_norm": 0.3},
        "averaging": {"name": "none"},
        "learning": learning or {"name": "weights"},
        "training": {"steps": steps, "batch": BATCH, "validate_every": 3, "validation_batch": 16, "dtype": dtype},
    }


def stage_one(*, rate: float = 0.05, life: int = 0) -> dict[str, Any]:
    of_form = {"name": "adam", "learning_rate": rate, "schedule": {"name": "constant"}, "clip_norm": 0.7}
    return {"name": "architecture", "models": MODELS, "life": life, "optimizer": of_form}
