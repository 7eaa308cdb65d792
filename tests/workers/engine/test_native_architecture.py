"""Architectures that native steps learn, against torch's own gradient of `Architecture.gradient`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import vmap

from spaces.records import Metric
from tests.support.alone import configuration
from tests.support.trials import trial
from workers.engine.lane_programs import as_trained_by
from workers.engine.pack import Pack
from workers.engine.pack.lane_data import draw_training_batches
from workers.engine.pack.lanes import LaneTrial
from workers.engine.step import NativeStep, choose_step
from workers.numerics import native
from workers.numerics.randomness import SiteStreams
from workers.numerics.tracing import load_gradients
from workers.training.recipe import Recipe, gradient_of, layout_of

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

SPLINE = {"name": "spline", "knots": 9, "low": -2, "high": 2}
GPT = {"name": "transformer", "width": 8, "heads": 2, "depth": 2, "mlp_multiple": 2}
COPYING = {"name": "copying", "length": 4, "validation_length": 5, "test_length": 6, "test_together": True}
LEARNED: dict[str, dict[str, Any]] = {
    "an MLP's spline, a share held out": {
        "task": COPYING,
        "model": {**GPT, "activation": SPLINE},
        "learning": {"name": "architecture", "models": 3, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    },
    "the MLP's and attention's, with lives": {
        "task": {"name": "add_mod", "modulus": 7},
        "model": {
            **GPT,
            "activation": SPLINE,
            "scorer": {"name": "spline_kernel", "phi": {**SPLINE, "low": -1}},
            "norm_epsilon": 0.01,
        },
        "learning": {"name": "architecture", "models": 2, "life": 4, "held_out_one_in": 0},
    },
    "a regressor's": {
        "task": {"name": "affine", "points": 5, "deviants": 1},
        "model": {**GPT, "name": "regressor", "activation": SPLINE},
        "learning": {"name": "architecture", "models": 2},
    },
}


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_is_torchs(name: str) -> None:
    settings = configuration(**LEARNED[name])
    trials = [trial(number, settings) for number in range(3)]
    for number, candidate in enumerate(trials):
        candidate.config["model"]["norm_epsilon"] = 0.001 * (number + 1)  # a knob, which every model of a lane has
    pack = Pack(trials[0], width=3)
    step, tensors = pack._step, pack._tensors  # pyright: ignore[reportPrivateUsage]
    assert isinstance(step, NativeStep)
    pack.fill(trials)
    pack.train(2)
    recipe = Recipe.of(settings)
    [batch] = draw_training_batches(recipe, [LaneTrial.of(candidate) for candidate in trials], tensors)
    load_gradients()
    layout, (knobs, parameters) = layout_of(recipe), (tensors.knobs, tensors.state.parameters)
    expected, losses = vmap(lambda knobs, flat, batch: gradient_of(recipe.bind(knobs), layout, flat, batch, {}))(
        knobs, parameters, batch
    )
    bound = recipe.bind(knobs)
    sites = SiteStreams(seeds=tensors.seeds, steps=tensors.state.step)
    gradient, loss = step._gradient(bound.model, bound.task, parameters, batch, sites)  # pyright: ignore[reportPrivateUsage]
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(loss, losses, rtol=1e-12, atol=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LEARNED)
def test_metrics_are_the_traced_ones(name: str) -> None:
    """Means over the models, also of lanes that copies fill up."""
    trials = [trial(number, configuration(**LEARNED[name])) for number in range(3)]
    evaluations = list[dict[int, tuple[Metric, ...]]]()
    for kind in ("", "generated AVX2"):
        with as_trained_by(kind):
            pack = Pack(trials[0], width=4)
            pack.fill(trials)
            evaluations.append(pack.evaluate([0, 1, 2]))
            assert isinstance(pack._step, NativeStep) == (not kind)  # pyright: ignore[reportPrivateUsage]
    for number, metrics in evaluations[0].items():
        for metric, other in zip(metrics, evaluations[1][number], strict=True):
            assert metric[:-1] == other[:-1]
            assert metric.value == pytest.approx(other.value, rel=1e-12, abs=1e-15)


@pytest.mark.long
def test_what_generated_steps_learned_is_learned_by_them_again() -> None:
    recipe = Recipe.of(configuration(**LEARNED["a regressor's"]))
    assert choose_step(recipe, torch.device("cpu")) == ("native", "")
    with as_trained_by("generated AVX2"):
        assert choose_step(recipe, torch.device("cpu"))[0] == "generated"
    with as_trained_by("traced cpu"):
        assert choose_step(recipe, torch.device("cpu"))[0] == "traced"
