"""Trials for tests, built by hand: one place that knows a full configuration of the minimal transformer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from spaces import plugins
from spaces.records import Trial
from workers.engine.pack import Pack
from workers.engine.pack.stepping import StartedSteps
from workers.engine.step import TracedStep
from workers.training.recipe import Recipe

FIRST_STEP = torch.zeros(1, dtype=torch.int64)
"""What a task is told of the steps made, for tasks that do not care."""


def config(
    *,
    length: int = 4,
    vocabulary: int = 9,
    width: int = 12,
    key_width: int = 5,
    value_width: int = 9,
    steps: int = 30,
    every: int = 10,
    batch: int = 16,
    validation_batch: int = 40,
    dtype: str = "float64",
    model: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    averaging: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a small configuration; `model`, `optimizer` and `averaging` add to or replace fields."""
    return {
        "task": {"name": "set_complement", "length": length, "vocabulary": vocabulary},
        "model": {
            "name": "minimal",
            "width": width,
            "key_width": key_width,
            "value_width": value_width,
            **(model or {}),
        },
        "optimizer": {"name": "adamw", **(optimizer or {})},
        "averaging": averaging or {"name": "bema"},
        "training": {
            "steps": steps,
            "batch": batch,
            "validate_every": every,
            "validation_batch": validation_batch,
            "dtype": dtype,
        },
    }


def trial(number: int, configuration: dict[str, Any], seed: int | None = None) -> Trial:
    """Return a trial of this configuration; its structure as the space would derive it."""
    recipe = Recipe.of(configuration).pad()
    parts = ("task", "model", "optimizer", "averaging", "learning")
    shared = {part: plugins.structure_of(getattr(recipe, part)) for part in parts}
    names = ("batch", "accumulate", "validate_every", "dtype", "autocast", "pad_shapes")
    shared["training"] = [getattr(recipe.training, name) for name in names]
    return Trial(
        number=number,
        group=0,
        seed=1_000_003 * number + 17 if seed is None else seed,
        draws={},
        params={},
        config=configuration,
        structure=plugins.canonical_json(shared),
    )


def random_knobs(random_numbers: random.Random, *, dropout: bool = True) -> dict[str, dict[str, Any]]:
    """Every knob of Table 1 of paper 003 drawn from its distribution; warm-up and lag cut to a short run."""
    u = random_numbers.uniform
    rate = 10 ** u(-5, -1)
    return {
        "model": {
            "norm_epsilon": 10 ** u(-10, -4),
            "embedding_dropout": u(0.01, 0.5) if dropout else 0.0,
            "residual_dropout": u(0.01, 0.5) if dropout else 0.0,
        },
        "optimizer": {
            "learning_rate": rate,
            "beta1": 1 - 10 ** u(-2, 0),
            "beta2": 1 - 10 ** u(-8, -1),
            "weight_decay": 10 ** u(-6, 0),
            "epsilon": 10 ** u(-12, -8),
            "clip_norm": 10 ** u(-2, 2),
            "schedule": {
                "name": "linear",
                "warmup": int(10 ** u(-2, 1.5)),
                "end_multiplier": 10 ** u(-4, 0),
            },
        },
        "averaging": {"name": "bema", "eta": u(0, 1), "rho": 10 ** u(0, 10), "kappa": u(0, 1)},
    }


def set_parameters(pack: Pack, number: int, named: Mapping[str, Tensor]) -> None:
    """Replace a running trial's parameters, for example by weights built by hand."""
    index, running = pack._lanes.find(number, 0)
    stacked = pack._tensors.state.parameters
    stacked[index] = pack._layout.pad(running.layout, running.layout.join(named)).to(stacked)


def replace_step(pack: Pack, act: Callable[..., Any]) -> None:
    """Have a pack make its steps so from now on, one at a time."""
    pack._stepper = StartedSteps(pack._recipe, cast(Any, act))  # pyright: ignore[reportPrivateUsage]


def traced_step(recipe: Recipe, structure: str, device: torch.device, *_: int) -> TracedStep:
    """Return the traced step, in the place of `step_of`."""
    return TracedStep(recipe, structure, device)
