"""The native steps against plain PyTorch that shares no code with ours (`tests.oracles.pieces`).

`tests/graft/exports/test_scripts.py` compares the metrics of whole trials of each plug-in; here options are crossed,
and gradients, parameters and averages themselves are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from spaces import plugins
from tests.oracles.pieces import parts
from tests.oracles.pieces.running import Stage
from tests.oracles.pieces.streams import DROPOUT, keep_mask, open_stream
from tests.support.native_layered import ADDITION, AFFINE, COMPLEMENT, COPYING, CPU, REGRESSION, SOME, Case, models
from tests.support.native_layered import recipe_of as layered_recipe
from tests.support.trials import config, trial
from workers.engine.pack import Pack
from workers.engine.step import find_obstacle
from workers.networks.models import Model
from workers.numerics import native
from workers.training.recipe import Recipe

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

TOKENS, VECTORS = [ADDITION, COMPLEMENT, COPYING], [AFFINE, SOME, REGRESSION]


def gradient_of_pieces(recipe: Recipe, case: Case, lane: int) -> tuple[Tensor, Tensor]:
    """Gradient [P] and loss of a lane by autograd through the pieces, from the same batch and masks."""
    task, model = (parts.build(name, plugins.config_of(getattr(recipe, name))) for name in ("task", "model"))
    batch = {name: tensor[lane] for name, tensor in case.batch.items()}
    values = {
        name: tensor.detach().requires_grad_() for name, tensor in case.layout.split(case.parameters[lane]).items()
    }
    sites = model.sites(task, recipe.training.batch, batch["inputs"].shape[1])
    keep = {
        name: keep_mask(open_stream(int(case.seeds[lane]), DROPOUT, 0, site), rate, shape)
        for site, (name, (shape, rate)) in enumerate(sites.items())
        if rate
    }
    loss = task.loss(model.outputs(values, batch, keep), batch)
    gradients = torch.autograd.grad(loss, [*values.values()], allow_unused=True, materialize_grads=True)
    return case.layout.join(dict(zip(values, gradients, strict=True))), loss.detach()


def assert_equal_gradients(recipe: Recipe, seed: int, tolerance: float = 1e-10) -> None:
    assert find_obstacle(recipe, CPU) is None
    case = Case(recipe, seed=seed)
    gradient, loss = case.native()
    exact = Case(recipe, seed=seed)
    exact.parameters = case.parameters.double()
    for lane in range(len(gradient)):
        truth, true_loss = gradient_of_pieces(recipe, exact, lane)
        assert (gradient[lane] - truth).norm() <= tolerance * truth.norm()
        torch.testing.assert_close(loss[lane].double(), true_loss.double(), rtol=tolerance, atol=0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    if draw(st.booleans()):
        return draw(st.sampled_from(VECTORS)), {"name": "regressor", **draw(models())}
    ends = {"tied": draw(st.booleans()), "logit_cap": draw(st.sampled_from([0.0, 3.0]))}
    return draw(st.sampled_from(TOKENS)), {"name": "transformer", **draw(models()), **ends}


@pytest.mark.long
@settings(max_examples=40)
@given(cases(), st.integers(1, 6), st.integers(0, 1000))
def test_gradients_with_all_options_crossed(case: tuple[dict[str, Any], dict[str, Any]], batch: int, seed: int) -> None:
    assert_equal_gradients(layered_recipe(*case, batch), seed)


@pytest.mark.parametrize("task", [*TOKENS, *VECTORS], ids=lambda task: task["name"])
def test_gradients_in_float32(task: dict[str, Any]) -> None:
    model = {"name": "regressor" if task in VECTORS else "transformer", "width": 32}
    assert_equal_gradients(layered_recipe(task, model, 16, "float32"), 0, tolerance=1e-5)


MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (COMPLEMENT, {"name": "minimal", "width": 12, "key_width": 5, "value_width": 7, "residual_dropout": 0.2}),
    (COMPLEMENT, {"name": "minimal", "width": 12, "key_width": 5, "value_width": 7, "scorer": {"name": "average"}}),
    ({"name": "max_retrieval", "items": 9, "largest": 16}, {"name": "attention_pooling", "width": 12}),
    (REGRESSION, {"name": "linearised_attention"}),
    (ADDITION, {"name": "transformer", "width": 12, "pre_norm": False, "attention_dropout": 0.2}),
    (AFFINE, {"name": "regressor", "width": 12, "scorer": {"name": "ssa"}, "canon": "AB"}),
]


def settings_of(task: dict[str, Any], model: dict[str, Any], dtype: str, **given: Any) -> dict[str, Any]:
    configuration = config(steps=30, every=30, dtype=dtype, **given)
    configuration["task"], configuration["training"]["batch"] = task, 8
    configuration["model"] = plugins.config_of(plugins.build(Model, model))
    return configuration


@pytest.mark.parametrize(("task", "model"), MODELS[:4], ids=str)
def test_gradients_of_other_models(task: dict[str, Any], model: dict[str, Any]) -> None:
    assert_equal_gradients(Recipe.of(settings_of(task, model, "float64")), seed=3)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("averaging", [{"name": "bema"}, {"name": "ema", "kappa": 0.7}], ids=lambda part: part["name"])
@pytest.mark.parametrize(("task", "model"), MODELS, ids=str)
def test_whole_trainings(
    task: dict[str, Any], model: dict[str, Any], averaging: dict[str, Any], dtype: str, tolerance: float
) -> None:
    """Parameters and averages after 29 steps, of trials that train together.

    With the usual epsilon Adam's first steps are the signs of gradients, of which some are rounding alone in float32.
    """
    configuration = settings_of(task, model, dtype, averaging=averaging)
    configuration["optimizer"] |= {"epsilon": 1e-8 if dtype == "float64" else 1e-3}
    trials = [trial(number, configuration) for number in range(3)]
    pack = Pack(trials[0], width=3)
    pack.fill(trials)
    pack.train(29)
    recipe = Recipe.of(trials[0].config)
    sections = ("task", "model", "optimizer", "averaging", "learning")
    resolved = {name: plugins.config_of(getattr(recipe, name)) for name in sections}
    for index, candidate in enumerate(trials):
        stage = Stage(candidate.seed, {**resolved, "training": candidate.config["training"]})
        state = stage.start()
        for step in range(29):
            state, _ = stage.step(state, step)
        values, _, shadow = state
        expected = [values, *(average for _, _, average in stage.averaging.variants(shadow, values, 29))]
        for actual, truth in zip(pack.parameters_by_variant(index, candidate).values(), expected, strict=True):
            assert difference(actual, truth) <= tolerance


def difference(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Return the norm of all differences, over that of all numbers."""
    errors = torch.cat([(tensor - expected[name]).flatten().double() for name, tensor in actual.items()])
    return float(errors.norm() / torch.cat([tensor.flatten().double() for tensor in expected.values()]).norm())
