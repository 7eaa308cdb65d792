"""Fused and native steps of the same start, and how their tensors are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from tests.support.emulated_gpu import CPU, emulated_step
from workers.engine.machine.process import flush_subnormals
from workers.engine.step import NativeStep, step_of
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, State, initial_state, layout_of


def start_of(recipe: Recipe, lanes: int) -> tuple[dict[str, Tensor], Tensor, State]:
    layout, seeds = layout_of(recipe), torch.arange(lanes) * 7919 + 3
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    knobs["optimizer.learning_rate"] *= torch.linspace(0.5, 2, lanes).double()
    return knobs, seeds, vmap(lambda flat: initial_state(recipe, layout, flat))(layout.initial(seeds).to(recipe.dtype))


@flush_subnormals()
def native_steps(recipe: Recipe, lanes: int, steps: int) -> State:
    knobs, seeds, state = start_of(recipe, lanes)
    step, task = step_of(recipe, repr(recipe), CPU), recipe.task
    assert isinstance(step, NativeStep)
    for _ in range(steps):
        streams = Streams.of(seeds, Purpose.TRAINING_DATA, state.step)
        state = step(knobs, seeds, state, task.training(streams, recipe.training.batch, state.step))
    return state


@flush_subnormals()
def fused_steps(recipe: Recipe, lanes: int, steps: int, launch: int = 64, **choices: Any) -> State:
    knobs, seeds, state = start_of(recipe, lanes)
    step = emulated_step(recipe, **choices)
    while steps:
        state, made = step.advance(knobs, seeds, state, min(steps, launch))
        steps -= made
    return state


def assert_close(state: State, other: State, tolerance: float) -> None:
    for tensor, expected in zip(tensors_of(state), tensors_of(other), strict=True):
        scale = float(expected.double().abs().max())
        assert float((tensor.double() - expected.double()).abs().max()) <= tolerance * scale


def tensors_of(state: State) -> list[Tensor]:
    return [
        state.parameters,
        *state.moments.values(),
        *state.shadow.values(),
        state.loss_sum,
        state.step,
        state.diverged_at,
    ]


@flush_subnormals()
def start_of_first(recipe: Recipe, lanes: int, of: int, **choices: Any) -> State:
    knobs, seeds, state = start_of(recipe, of)
    few = {path: values[:lanes].clone() for path, values in knobs.items()}
    first: State = tree_map(lambda tensor: tensor[:lanes].clone(), state)
    return emulated_step(recipe, **choices).advance(few, seeds[:lanes], first, 6)[0]


def assert_same(state: State, other: State) -> None:
    assert all(
        torch.equal(tensor, expected) for tensor, expected in zip(tensors_of(state), tensors_of(other), strict=True)
    )
