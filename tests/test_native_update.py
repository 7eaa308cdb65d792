"""The compiled update against the traced one and against torch.optim."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.func import vmap

from tests.trials import config
from workers.numerics import native
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training.compiled_update import CompiledUpdate, update_of
from workers.training.recipe import Recipe, State, apply_gradient, initial_state, layout_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")

CPU = torch.device("cpu")
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw", "weight_decay": 0.1, "beta2": 1 - 1e-8},
    {"name": "adamw", "beta1": 0.0},
    {"name": "adam", "weight_decay": 0.03, "epsilon": 1e-3},
    {"name": "sgd", "weight_decay": 0.03},
    {"name": "sgd", "nesterov": True, "momentum": 0.5},
]
AVERAGINGS: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "ema", "kappa": 0.7},
    {"name": "bema", "rho": 3},
    {"name": "bema_grid", "kappas": 3, "etas": 2},
]
SCHEDULES = ["constant", "linear", "cosine", "warmup_cooldown"]


def recipe_of(optimizer: dict[str, Any], averaging: dict[str, Any], dtype: str = "float64", **task: Any) -> Recipe:
    one = config(steps=40, every=40, dtype=dtype, averaging=averaging)
    return Recipe.of({**one, "optimizer": optimizer, **task})


def start_of(recipe: Recipe, layout: Layout, lanes: int) -> State:
    parameters = layout.initial(torch.arange(lanes)).to(recipe.dtype)
    return vmap(lambda one: initial_state(recipe, layout, one))(parameters)


def trained(update: Any, recipe: Recipe, layout: Layout, lanes: int, steps: int = 4, scale: float = 1.0) -> State:
    """The state after some steps with random gradients, of which some are clipped."""
    state = start_of(recipe, layout, lanes)
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    for step in range(steps):
        streams = Streams.of(torch.arange(lanes), Purpose.INITIAL, 7 + step)
        gradient = (streams.normal(layout.total) * scale * 10.0 ** (-2 * step)).to(recipe.dtype)
        state = update(knobs, state, gradient, gradient.square().mean(-1))
    return state


def traced_of(recipe: Recipe, layout: Layout) -> Any:
    return vmap(lambda knobs, *rest: apply_gradient(recipe.bind(knobs), layout, *rest))


def compiled_of(recipe: Recipe, layout: Layout) -> CompiledUpdate:
    compiled = update_of(recipe, layout, CPU)
    assert compiled
    return compiled


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(AVERAGINGS),
    st.sampled_from(SCHEDULES),
    st.sampled_from([1e-3, 1.0, 1e6]),
    st.sampled_from(["float32", "float64"]),
)
def test_it_is_the_traced_update(
    optimizer: dict[str, Any], averaging: dict[str, Any], schedule: str, clip_norm: float, dtype: str
) -> None:
    own = {**optimizer, "schedule": {"name": schedule}, "clip_norm": clip_norm, "learning_rate": 0.01}
    recipe = recipe_of(own, averaging, dtype)
    layout = layout_of(recipe)
    compiled = trained(compiled_of(recipe, layout), recipe, layout, lanes=3)
    traced = trained(traced_of(recipe, layout), recipe, layout, lanes=3)
    close = {"rtol": 1e-12, "atol": 1e-14} if dtype == "float64" else {"rtol": 1e-5, "atol": 1e-7}
    for found, expected in zip(tree_leaves(compiled), tree_leaves(traced), strict=True):
        torch.testing.assert_close(found, expected, **close)


def test_frozen_parameters_keep_their_values() -> None:
    spline = {"name": "spline", "knots": 3, "start": "given", "values": "1 2 3", "frozen": True}
    model = {"name": "transformer", "width": 8, "activation": spline}
    recipe = recipe_of({"name": "adam"}, {"name": "none"}, model=model)
    layout = layout_of(recipe)
    compiled = trained(compiled_of(recipe, layout), recipe, layout, lanes=2)
    traced = trained(traced_of(recipe, layout), recipe, layout, lanes=2)
    torch.testing.assert_close(compiled.parameters, traced.parameters, rtol=1e-12, atol=1e-14)
    assert layout.split(compiled.parameters[0])["activation.knots"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("optimizer", "torchs", "options"),
    [
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.1}),
        ("adam", torch.optim.Adam, {"weight_decay": 0.1}),
        ("sgd", torch.optim.SGD, {"weight_decay": 0.1, "momentum": 0.9}),
        ("sgd", torch.optim.SGD, {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}),
    ],
)
def test_it_is_torchs_optimizer(optimizer: str, torchs: Any, options: dict[str, Any]) -> None:
    own = {"name": optimizer, **options, "learning_rate": 0.01, "schedule": {"name": "constant"}, "clip_norm": 0.5}
    recipe = recipe_of(own, {"name": "none"})
    layout = layout_of(recipe)
    found = trained(compiled_of(recipe, layout), recipe, layout, lanes=1).parameters[0]
    start = start_of(recipe, layout, 1).parameters[0]
    decayed, spared = (torch.nn.Parameter(start[layout.decays == on].clone()) for on in (1, 0))
    theirs = torchs([{"params": [decayed]}, {"params": [spared], "weight_decay": 0.0}], lr=0.01, **options)
    for step in range(4):
        streams = Streams.of(torch.arange(1), Purpose.INITIAL, 7 + step)
        gradient = streams.normal(layout.total)[0] * 10.0 ** (-2 * step)
        decayed.grad, spared.grad = gradient[layout.decays == 1].clone(), gradient[layout.decays == 0].clone()
        torch.nn.utils.clip_grad_norm_([decayed, spared], 0.5)
        theirs.step()
    torch.testing.assert_close(found[layout.decays == 1], decayed.detach(), rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found[layout.decays == 0], spared.detach(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_bits_do_not_depend_on_the_number_of_lanes(optimizer: dict[str, Any]) -> None:
    recipe = recipe_of(optimizer, {"name": "bema"}, "float32")
    layout = layout_of(recipe)
    update = compiled_of(recipe, layout)
    many, few = (trained(update, recipe, layout, lanes) for lanes in (5, 2))
    for found, expected in zip(tree_leaves(many), tree_leaves(few), strict=True):
        assert torch.equal(found[:2], expected)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_is_told(broken: float) -> None:
    recipe = recipe_of({"name": "adamw"}, {"name": "bema"}, "float32")
    layout = layout_of(recipe)
    state = trained(compiled_of(recipe, layout), recipe, layout, lanes=2, scale=broken)
    assert not state.parameters.isfinite().any()
    assert state.diverged_at.tolist() == [1, 1]


def test_what_it_does_not_know_is_traced() -> None:
    recipe = recipe_of({"name": "muon"}, {"name": "none"})
    assert update_of(recipe, layout_of(recipe), CPU) is None
    plain = recipe_of({"name": "adam"}, {"name": "none"})
    assert update_of(plain, layout_of(plain), torch.device("cuda")) is None
