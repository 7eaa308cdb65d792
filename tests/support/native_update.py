"""Optimizers, averages and schedules of the native update, and the traced update of the same start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from tests.support.trials import config
from workers.numerics import native
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose, Streams
from workers.training.native_update import NativeUpdate, UpdatePlan, update_of
from workers.training.recipe import Recipe, State, apply_gradient, initial_state

CPU = torch.device("cpu")
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw", "weight_decay": 0.1, "beta2": 1 - 1e-8},
    {"name": "adamw", "beta1": 0.0},
    {"name": "adam", "weight_decay": 0.03, "epsilon": 1e-3},
    {"name": "sgd", "weight_decay": 0.03},
    {"name": "sgd", "nesterov": True, "momentum": 0.5},
    {"name": "muon", "weight_decay": 0.2, "other_rate": 0.3},
    {"name": "muon", "nesterov": False, "iterations": 3, "adjustment": "match_adamw", "momentum": 0.5},
]
AVERAGINGS: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "ema", "kappa": 0.7},
    {"name": "bema", "rho": 3},
    {"name": "bema_grid", "kappas": 3, "etas": 2},
]
SCHEDULES = ["constant", "linear", "cosine", "warmup_cooldown"]


def recipe_of(optimizer: dict[str, Any], averaging: dict[str, Any], dtype: str = "float64", **task: Any) -> Recipe:
    settings = config(steps=40, every=40, dtype=dtype, averaging=averaging)
    return Recipe.of({**settings, "optimizer": optimizer, **task})


def start_of(recipe: Recipe, layout: Layout, lanes: int) -> State:
    parameters = layout.initial(torch.arange(lanes)).to(recipe.dtype)
    return vmap(lambda flat: initial_state(recipe, layout, flat))(parameters)


def trained(update: Any, recipe: Recipe, layout: Layout, lanes: int, steps: int = 4, scale: float = 1.0) -> State:
    """Return the state after some steps with random gradients, of which some are clipped."""
    state = start_of(recipe, layout, lanes)
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    for step in range(steps):
        streams = Streams.of(torch.arange(lanes), Purpose.INITIAL, 7 + step)
        gradient = (streams.normal(layout.total) * scale * 10.0 ** (-2 * step)).to(recipe.dtype)
        state = update(knobs, state, gradient, gradient.square().mean(-1))
    return state


def traced_of(recipe: Recipe, layout: Layout) -> Any:
    return vmap(lambda knobs, *rest: apply_gradient(recipe.bind(knobs), layout, *rest))


def update_in_c(recipe: Recipe, layout: Layout) -> NativeUpdate:
    compiled = update_of(recipe, layout, CPU)
    assert compiled
    return compiled


def plan_of(tensors: dict[str, Tensor], **choices: int) -> UpdatePlan:
    lanes, parameters = tensors["before"].shape
    plan = UpdatePlan(lanes=lanes, parameters=parameters, **choices)
    for name, tensor in tensors.items():
        setattr(plan, name, native.address(tensor))
    return plan
