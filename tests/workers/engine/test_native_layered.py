"""The native step of the layered transformers against torch's own gradient of the same functions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.plugins.active import using
from tests.support.native import lanes_alone_and_together
from tests.support.native_layered import (
    ACTIVATIONS,
    ADDITION,
    COMPLEMENT,
    CPU,
    CROSSED,
    LANGUAGE,
    MASKED,
    SCORERS,
    TASKS,
    Case,
    assert_torchs,
    cases,
    recipe_of,
)
from tests.support.pack import alone
from tests.support.trials import config, trial
from workers.data.tasks import Task
from workers.engine.step import NativeStep, find_obstacle, step_of
from workers.networks.gradients.native_models import find_obstacle as find_native_obstacle
from workers.networks.gradients.native_models import native_model
from workers.networks.scorers import Scorer
from workers.numerics import native
from workers.numerics.randomness import Purpose, Streams
from workers.training import plain
from workers.training.recipe import Recipe, layout_of

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")


CROSSED.remove({"name": "spline_kernel"})  # divides by sums of either sign, which may come as near to 0 as any bound


@pytest.mark.parametrize("scorer", SCORERS, ids=str)
@pytest.mark.parametrize("task", [ADDITION, COMPLEMENT], ids=lambda task: task["name"])
def test_every_scorer(task: dict[str, Any], scorer: dict[str, Any]) -> None:
    assert_torchs(recipe_of(task, {"name": "transformer", "scorer": scorer}))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("task", [ADDITION, COMPLEMENT], ids=lambda task: task["name"])
def test_every_activation(task: dict[str, Any], activation: dict[str, Any]) -> None:
    assert_torchs(recipe_of(task, {"name": "transformer", "activation": activation}))


DERIVED = """
from dataclasses import dataclass

from {module} import {base}


@dataclass(frozen=True, kw_only=True)
class Derived({base}):
    \"\"\"Another function of the same fields.\"\"\"

    def {method}(self, values, *others):
        return super().{method}(-3 * values, *others)
"""


@pytest.mark.parametrize(
    ("family", "module", "base", "method", "fields"),
    [
        ("activation", "workers.networks.activations.spline", "Spline", "apply", {"knots": 9, "low": -2, "high": 2}),
        ("scorer", "workers.networks.scorers.softmax", "Softmax", "weigh", {}),
        ("scorer", "workers.networks.scorers.mixed", "Mixed", "weigh", {}),
    ],
    ids=lambda value: value if isinstance(value, str) and value.istitle() else "",
)
def test_a_part_that_derives_from_a_packaged_one_is_its_own(
    tmp_path: Path, family: str, module: str, base: str, method: str, fields: dict[str, Any]
) -> None:
    (tmp_path / "derived.py").write_text(DERIVED.format(module=module, base=base, method=method))
    setup = config(steps=3, every=3, averaging={"name": "none"}, optimizer={"learning_rate": 0.05})
    model = {"name": "transformer", "width": 8, "heads": 2, "initialisation": "modded_nanogpt"}
    setup["model"] = {**model, family: {"name": "derived", **fields}}
    with using(plugins_asked_for([str(tmp_path / "derived.py")])):
        member = trial(1, setup)
        stage = plain.Stage(seed=member.seed, until=3, recipe=Recipe.of(setup))
        expected = plain.train([stage], evaluation_seed=member.seed, until=3, steps=[3]).metrics
        for metric in alone(member)[1, 3].metrics:
            assert metric.value == pytest.approx(expected[3, *metric[:3]], rel=1e-9), metric


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, tasks in TASKS.items() for task in tasks], ids=str)
def test_every_task(name: str, task: dict[str, Any]) -> None:
    assert_torchs(recipe_of(task, {"name": name, "position": {"name": "rotary"}}))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 9), st.integers(0, 1000))
def test_all_options_crossed(case: tuple[dict[str, Any], dict[str, Any]], batch: int, seed: int) -> None:
    assert_torchs(recipe_of(*case, batch), seed)


@pytest.mark.parametrize("batch", [1, 40])
@pytest.mark.parametrize(
    "model",
    [
        {"pre_norm": False},
        {"position": {"name": "rotary"}, "depth": 1, "query_key_norm": True},
        {"position": {"name": "sinusoidal"}, "canon": "BCD", "attention_dropout": 0.3},
    ],
    ids=str,
)
def test_rows_that_are_alike_and_rows_that_are_not(model: dict[str, Any], batch: int) -> None:
    """In a batch of 40 the first layer works on distinct rows alone, in one of 1 on each row."""
    assert_torchs(recipe_of(COMPLEMENT, {"name": "transformer", **model}, batch))


@pytest.mark.parametrize("batch", [3, 70])
@pytest.mark.parametrize(
    "model",
    [
        {"pre_norm": False, "bias": True},
        {"activation": {"name": "swiglu"}, "position": {"name": "rotary"}, "tied": True},
        {"width": 92, "heads": 4, "canon": "ABCD", "query_key_norm": True, "attention_dropout": 0.2},
    ],
    ids=str,
)
def test_models_larger_than_a_cache(model: dict[str, Any], batch: int) -> None:
    """Matrices of more than a megabyte together are packed where they are used, unless they fill no whole registers."""
    recipe = recipe_of(COMPLEMENT, {"name": "transformer", "width": 96, **model}, batch)
    assert layout_of(recipe).total * 8 > 2**20
    assert_torchs(recipe)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sequence_has_the_same_gradient_alone_and_among_others(dtype: str) -> None:
    """Of the others no position carries loss, so that they add zeros; they are attended to side by side with it.

    Its own keys lie along a register or beside others', so that sums over them have another order: a rounding apart.

    A Canon layer A makes equal tokens differ: otherwise the first layer works on sums over them.
    """
    masked = {**MASKED, "length": 7}
    model = {"name": "encoder", "width": 24, "canon": "A", "scorer": {"name": "softmax", "temperature": 0.7}}
    case = Case(recipe_of(masked, model, 16, dtype))
    case.batch["wanted"][:, 1:] = False
    gradient, _ = case.native()
    case.batch = {name: tensor[:, :1] for name, tensor in case.batch.items()}
    torch.testing.assert_close(gradient, case.native()[0], rtol=1e-4, atol=2e-6 if dtype == "float32" else 1e-12)


@settings(max_examples=20)
@given(cases(), st.integers(0, 1000))
def test_bits_do_not_depend_on_the_number_of_lanes(case: tuple[dict[str, Any], dict[str, Any]], seed: int) -> None:
    lanes = Case(recipe_of(*case, dtype="float32"), lanes=5, seed=seed)
    gradient, loss = lanes.native()
    for lane in range(5):
        alone, alone_loss = lanes.native(slice(lane, lane + 1))
        assert torch.equal(alone[0], gradient[lane])
        assert torch.equal(alone_loss[0], loss[lane])


@pytest.mark.parametrize("task", TASKS["transformer"], ids=lambda task: task["name"])
@pytest.mark.parametrize("scorer", ["softmax", "ssa"])
def test_float32_is_close(task: dict[str, Any], scorer: str) -> None:
    model = {"name": "transformer", "width": 32, "scorer": {"name": scorer}}
    exact, exact_loss = Case(recipe_of(task, model, 16)).torchs()
    gradient, loss = Case(recipe_of(task, model, 16, "float32")).native()
    assert (gradient - exact).norm() <= 1e-5 * exact.norm()
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "model", [{}, {"scorer": {"name": "ssa"}, "attention_dropout": 0.2, "pre_norm": False}], ids=str
)
def test_trials_train_alike_alone_and_together(model: dict[str, Any]) -> None:
    configuration = config(steps=20, every=10, dtype="float32")
    configuration["task"], configuration["model"] = ADDITION, {"name": "transformer", "width": 12, "heads": 2, **model}
    in_pack, alone = lanes_alone_and_together([trial(number, configuration) for number in range(5)])
    assert in_pack == alone


def test_a_pack_trains_by_it() -> None:
    recipe = recipe_of(COMPLEMENT, {"name": "transformer"})
    assert find_obstacle(recipe, CPU) is None
    assert isinstance(step_of(recipe, "one", CPU), NativeStep)


def test_threads_do_not_disturb_one_another() -> None:
    case = Case(recipe_of(LANGUAGE, {"name": "transformer", "width": 32, "attention_dropout": 0.1}, 16, "float32"), 4)
    expected = case.native()
    with ThreadPoolExecutor(4) as pool:
        for actual in pool.map(lambda _: case.native(), range(16)):
            assert torch.equal(actual[0], expected[0])


def test_numbers_below_the_smallest_normal_one_are_numbers_again_afterwards() -> None:
    Case(recipe_of(COMPLEMENT, {"name": "transformer"}, dtype="float32")).native()
    assert float(torch.tensor([1e-39]) * torch.tensor([0.5])) > 0


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize("scorer", [scorer["name"] for scorer in SCORERS])
def test_what_is_no_number_shows_in_the_loss(scorer: str, broken: float) -> None:
    case = Case(recipe_of(COMPLEMENT, {"name": "transformer", "scorer": {"name": scorer}}, dtype="float32"))
    case.parameters[1] = broken
    assert case.native()[1].isfinite().tolist() == [True, False]


@pytest.mark.parametrize(("name", "task"), [(name, task) for name, tasks in TASKS.items() for task in tasks], ids=str)
def test_a_loss_is_the_sum_over_positions_that_its_task_says(name: str, task: dict[str, Any]) -> None:
    case = Case(recipe_of(task, {"name": name}))
    built_task: Task = case.recipe.task
    outputs = Streams.of(case.seeds, Purpose.INITIAL, 5).normal(*case.batch["inputs"].shape[1:3], 64)
    targets, weights = built_task.position_targets(case.batch, torch.float64)
    if built_task.position_loss == "cross_entropy":
        losses = -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    else:
        numbers = outputs[..., 0]
        squared = built_task.position_loss == "squared"
        losses = (numbers - targets).square() if squared else torch.nn.functional.softplus(-numbers * targets)
    for lane in range(2):
        batch = {key: tensor[lane] for key, tensor in case.batch.items()}
        torch.testing.assert_close((losses * weights)[lane].sum(), built_task.loss(outputs[lane], batch))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            {"scorer": {"name": "spline_kernel", "phi": {"name": "chebyshev"}}},
            "the activation chebyshev is not in the native step",
        ),
        ({"activation": {"name": "chebyshev"}}, "the activation chebyshev is not in the native step"),
    ],
    ids=str,
)
def test_what_is_not_covered_says_why(model: dict[str, Any], reason: str) -> None:
    recipe = recipe_of(COMPLEMENT, {"name": "transformer", **model})
    assert reason in (find_obstacle(recipe, CPU) or "")
    assert not isinstance(step_of(recipe, "one", CPU), NativeStep)


def test_every_scorer_is_covered_or_says_why() -> None:
    for name in plugins.names(Scorer):
        recipe = recipe_of(COMPLEMENT, {"name": "transformer", "scorer": {"name": name}})
        model = native_model(recipe.model, recipe.task, recipe.dtype, CPU)
        assert (find_obstacle(recipe, CPU) is None) == (model is not None)


def test_another_device_has_no_native_step() -> None:
    recipe, device = recipe_of(COMPLEMENT, {"name": "transformer"}), torch.device("cuda")
    obstacle = find_native_obstacle(recipe.model, recipe.task, recipe.dtype, device)
    assert obstacle == "the native step runs on a CPU, not on cuda"
    assert find_obstacle(recipe, device) == "the fused step knows the minimal transformer on set complement alone"
