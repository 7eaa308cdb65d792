"""Settings of trials of different sizes."""

from __future__ import annotations

import random
from typing import Any

from tests.support.trials import config, random_knobs


def settings(shape: tuple[int, ...], *, pad: bool, dtype: str = "float64", **given: Any) -> dict[str, Any]:
    tokens, length, width, key_width, value_width = shape
    made = config(
        vocabulary=tokens, length=length, width=width, key_width=key_width, value_width=value_width,
        steps=6, every=4, batch=6, validation_batch=8, dtype=dtype, **given,
    )  # fmt: skip
    made["training"]["pad_shapes"] = pad
    return made


def knobs_of(seed: int, dropout: tuple[float, float], unit: str = "occurrence") -> dict[str, Any]:
    """All knobs drawn, but for the moment decays and Adam's epsilon, which could make 1e-16 large."""
    drawn = random_knobs(random.Random(seed))
    model = {"embedding_dropout": dropout[0], "residual_dropout": dropout[1], "dropout_unit": unit}
    kept = {key: drawn["optimizer"][key] for key in ("learning_rate", "weight_decay", "clip_norm", "schedule")}
    return {"model": drawn["model"] | model, "optimizer": kept, "averaging": drawn["averaging"]}
