"""The layered transformers' fused step on a processor, against the native step, autograd and itself.

No test here has a GPU: the kernel runs block by block in an emulator (tests/support/emulated_gpu.py).
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import spaces
from graft.plugins.families import families
from tests.support.emulated_gpu import BACKWARDS, CPU, HOPPER, SHUFFLED, emulated_step
from tests.support.fused import assert_close, assert_same, fused_steps, native_steps, start_of_first
from tests.support.native_layered import ADDITION, COMPLEMENT, COPYING, Case
from tests.support.pretended_gpu import DEVICE, PretendedTensor, pretended_gpu
from tests.support.trials import config, trial
from workers.engine import fused
from workers.engine import fused_check as check
from workers.engine.fused import layered
from workers.engine.fused.kernels import kernel_for
from workers.engine.fused.layered_plan import ARRAYS, LAYER_ARRAYS, Sizes, block_arrays, lay_out, layer_arrays
from workers.engine.fused.memory import Limits
from workers.engine.machine.process import flush_subnormals
from workers.engine.pack import Pack
from workers.engine.pack.lane_tensors import LaneTensors
from workers.numerics import native
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, initial_state, layout_of

compiled = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
DROPOUT = {"embedding_dropout": 0.2, "attention_dropout": 0.3, "mlp_dropout": 0.1}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (ADDITION, {}),
    (ADDITION, {"pre_norm": False}),
    (ADDITION, {"pre_norm": False, **DROPOUT}),
    (COPYING, {"depth": 1, **DROPOUT}),
    (COMPLEMENT, {"tied": True, "depth": 3}),
    (COMPLEMENT, {"norm": "rms_norm", "bias": False, "pre_norm": False}),
    (COPYING, {"norm": "rms_norm", "position": {"name": "none"}}),
    (COPYING, {"position": {"name": "rotary"}, "scorer": {"name": "average"}}),
    (COMPLEMENT, {"position": {"name": "alibi"}, "scorer": {"name": "softmax", "temperature": 0.4}}),
    (COPYING, {"position": {"name": "sinusoidal"}, "heads": 3}),
    (COPYING, {"scorer": {"name": "ssa", "b": 0.7, "n": 1.2}, "position": {"name": "alibi"}}),
    (COMPLEMENT, {"scorer": {"name": "ssa_fixed", "b": 0.7, "n": 2}, "pre_norm": False}),
    (ADDITION, {"activation": {"name": "spline", "knots": 9, "low": -1.0, "high": 2.0}}),
    (COMPLEMENT, {"activation": {"name": "spline"}, "activation_per_layer": True, "depth": 3}),
    (ADDITION, {"activation": {"name": "spline", "knots": 3, "start": "given", "values": "0 0 1", "frozen": True}}),
    *(
        (ADDITION, {"activation": {"name": name}})
        for name in ("identity", "relu", "relu_squared", "tanh", "glu", "geglu", "swiglu", "reglu")
    ),
    (ADDITION, {"activation": {"name": "gelu", "form": "tanh"}}),
]
SHOWN = [f"{task['name']}-{'-'.join(model) or 'plain'}-{number}" for number, (task, model) in enumerate(CASES)]


def configuration_of(task: dict[str, Any], model: dict[str, Any], batch: int = 9, **parts: Any) -> dict[str, Any]:
    made = config(dtype="float32", batch=batch, steps=60, every=60, **parts)
    return {**made, "task": task, "model": {"name": "transformer", "heads": 2, "width": 12, **model}}


def recipe_of(task: dict[str, Any], model: dict[str, Any], batch: int = 9, **parts: Any) -> Recipe:
    return Recipe.of(configuration_of(task, model, batch, **parts))


# -- against the native step, and autograd ----------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize(("task", "model"), CASES, ids=SHOWN)
def test_it_trains_as_the_native_step_does(task: dict[str, Any], model: dict[str, Any]) -> None:
    recipe = recipe_of(task, model)
    assert_close(fused_steps(recipe, 2, 8, launch=3), native_steps(recipe, 2, 8), 1e-5)


@compiled
@pytest.mark.long
@pytest.mark.parametrize("number", [1, 10, 12])
def test_its_gradient_is_autograds(number: int) -> None:
    """As the first moment after a step that clips nothing; the exact one is of float64 and the same numbers."""
    own, exact = (Case(recipe) for recipe in _in_both_precisions(number))
    exact.parameters = own.parameters.double()
    state = tree_map(
        lambda tensor: tensor.expand(2, *tensor.shape).clone(),
        initial_state(own.recipe, own.layout, own.parameters[0]),
    )
    with flush_subnormals():
        after, _ = emulated_step(own.recipe).advance(own.knobs, own.seeds, state._replace(parameters=own.parameters), 1)
    gradient, loss = exact.torchs()
    found = after.moments["first"].double() / (1 - 0.9)
    assert ((found - gradient).abs().amax(-1) <= 1e-5 * gradient.abs().amax(-1)).all()
    torch.testing.assert_close(after.loss_sum, loss, rtol=1e-5, atol=0)


def _in_both_precisions(number: int) -> list[Recipe]:
    made = configuration_of(*CASES[number], optimizer={"clip_norm": 1e9, "beta1": 0.9})
    return [Recipe.of({**made, "training": {**made["training"], "dtype": dtype}}) for dtype in ("float32", "float64")]


@compiled
@pytest.mark.parametrize(
    "parts",
    [
        {"averaging": {"name": "none"}, "optimizer": {"name": "adam", "weight_decay": 0.1}},
        {"averaging": {"name": "bema_grid"}, "optimizer": {"weight_decay": 0.5, "clip_norm": 0.01}},
    ],
)
def test_its_update_is_the_native_one(parts: dict[str, Any]) -> None:
    recipe = recipe_of(COMPLEMENT, {}, **parts)
    assert_close(fused_steps(recipe, 2, 6), native_steps(recipe, 2, 6), 1e-5)


@compiled
def test_a_loss_that_is_no_number_is_noticed_at_its_step() -> None:
    recipe = recipe_of(ADDITION, {}, optimizer={"learning_rate": 1e30})
    own, expected = fused_steps(recipe, 2, 6), native_steps(recipe, 2, 6)
    assert own.diverged_at.tolist() == expected.diverged_at.tolist()
    assert 0 not in own.diverged_at


@compiled
@pytest.mark.long
@pytest.mark.parametrize("space", ["quick/add_mod", "quick/language"])
def test_shapes_of_the_catalogue(space: str) -> None:
    drawn = spaces.load(space, families()).sample(0, lambda _: 0.5).config
    recipe = Recipe.of({**drawn, "training": {**drawn["training"], "dtype": "float32"}})
    assert_close(fused_steps(recipe, 1, 2), native_steps(recipe, 1, 2), 1e-5)


# -- bits -------------------------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("number", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_bits_depend_neither_on_width_nor_on_launches_nor_on_the_order_of_threads(number: int) -> None:
    recipe = recipe_of(*CASES[number])
    expected = fused_steps(recipe, 33, 6)
    for lanes in (1, 2, 7):
        few = start_of_first(recipe, lanes, 33)
        assert_same(few, tree_map(lambda tensor, n=lanes: tensor[:n], expected))
    assert_same(fused_steps(recipe, 33, 6, launch=1), expected)
    for order in (BACKWARDS, SHUFFLED):
        assert_same(fused_steps(recipe, 33, 6, order=order), expected)


@compiled
def test_bits_do_not_depend_on_how_much_memory_a_gpu_shares() -> None:
    recipe = recipe_of(COPYING, {**DROPOUT, "depth": 3})
    expected, found = fused_steps(recipe, 2, 4), set[int]()
    for block in (227 << 10, 50 << 10, 10 << 10):
        limits = Limits(2 * block, block)
        assert_same(fused_steps(recipe, 2, 4, limits=limits), expected)
        found.add(emulated_step(recipe, limits=limits).workspace.scratch_floats)
    assert len(found) == 3


@compiled
def test_a_pack_trains_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that are refilled at their own steps, to the same parameters as alone."""
    made = configuration_of(ADDITION, {"pre_norm": False}, averaging={"name": "none"})
    expected = packed(made, [3])
    monkeypatch.setattr("workers.engine.pack.step_of", lambda recipe, *_: emulated_step(recipe))
    alone, beside = packed(made, [3]), packed(made, [5, 3])
    for name, parameter in alone.items():
        assert torch.equal(parameter, beside[name])
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=1e-5)


def packed(configuration: dict[str, Any], numbers: list[int]) -> dict[str, Tensor]:
    """Return the parameters of the last of these trials after 30 steps, in a pack where it began after the others."""
    trials = [trial(number, configuration) for number in numbers]
    pack = Pack(trials[0], width=2)
    for one in trials[:-1]:
        pack.fill([one])
        pack.train(10)
    pack.fill(trials[-1:])
    pack.train(30)
    return pack.parameters(numbers[-1])


# -- where it is used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "model", "reason"),
    [
        (ADDITION, {"scorer": {"name": "square"}}, "the fused step of transformers knows the scorers softmax, average"),
        (ADDITION, {"depth": 9}, "the fused step knows one to 8 layers, each with an MLP"),
        (ADDITION, {"mlp_multiple": 0}, "the fused step knows one to 8 layers, each with an MLP"),
        (
            ADDITION,
            {"activation": {"name": "gated", "gate": {"name": "gelu"}}},
            "the fused step knows no activation gated",
        ),
        (ADDITION, {"canon": "A"}, "the fused step of transformers knows no model.canon"),
        (ADDITION, {"query_key_norm": True}, "the fused step of transformers knows no model.query_key_norm"),
        (ADDITION, {"logit_cap": 3.0}, "the fused step of transformers knows no model.logit_cap"),
        (ADDITION, {"weight_dropout": 0.1}, "the fused step of transformers knows no model.weight_dropout"),
        ({"name": "add"}, {}, "the fused step of transformers does not know the data of add"),
        (ADDITION, {"width": 4096}, "the fused step of transformers knows no layer of 16384 channels, or 9 tokens"),
        ({"name": "linear_regression"}, {"name": "regressor"}, "the fused step knows no model regressor"),
    ],
)
def test_what_it_does_not_know_has_a_reason(task: dict[str, Any], model: dict[str, Any], reason: str) -> None:
    recipe = recipe_of(task, model)
    assert (kernel_for(recipe).find_obstacle(recipe) or "").startswith(reason)
    assert fused.obstacle(recipe, CPU, 128) == "the fused step runs on a GPU, not on cpu"


@pytest.mark.fast
def test_what_all_models_ask_for_is_asked_of_it_too() -> None:
    recipe = recipe_of(ADDITION, {}, optimizer={"name": "sgd"})
    assert (kernel_for(recipe).find_obstacle(recipe) or "").startswith("the fused step knows AdamW and Adam")


@pytest.mark.fast
@pytest.mark.parametrize("block", [227 << 10, 99 << 10, 20 << 10])
def test_arrays_lie_apart_and_two_blocks_fit_into_a_multiprocessor(block: int) -> None:
    sizes = Sizes(32, 64, 64, 2, 2, 256, 1, 60, 110_000, 7, 1, 9, 2)
    found = lay_out(sizes, Limits(block + 1024, block))
    assert found
    assert 2 * (found.shared_bytes + 1024) <= block + 1024
    arrays = [block_arrays(sizes), *(layer_arrays(sizes, last=layer == 1) for layer in range(2))]
    lengths = [length for one in arrays for length in one.values()]
    assert len(lengths) == len(found.places) == len(ARRAYS) + 2 * len(LAYER_ARRAYS)
    taken = sorted(place for place in zip(found.places, lengths, strict=True) if place[1])
    assert all(start + length <= after for (start, length), (after, _) in itertools.pairwise(taken))
    shared = found.shared_bytes // 4
    assert not [start for start, length in taken if start < shared < start + length]  # in one memory or the other
    assert sum(taken[-1]) <= shared + found.scratch_floats


@pytest.mark.fast
def test_a_gpu_that_shares_next_to_nothing_has_none() -> None:
    sizes = Sizes(32, 64, 64, 2, 2, 256, 1, 60, 110_000, 7, 1, 9, 2)
    assert lay_out(sizes, Limits(8 << 10, 4 << 10)) is None
    assert lay_out(sizes, HOPPER)


@pytest.mark.parametrize("number", [3, 12])
def test_all_that_it_gives_the_kernel_is_on_the_gpu_and_nothing_waits(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, given = recipe_of(*CASES[number]), list[Tensor]()
    monkeypatch.setattr(fused.step, "address", given.append)
    with pretended_gpu() as gpu:
        device = torch.device(DEVICE)
        workspace = layered.arrange(recipe, HOPPER)
        assert workspace
        step = layered.LayeredStep(recipe, device, "fused", workspace, lambda *_: None)
        own = trial(3, configuration_of(*CASES[number]))
        tensors = LaneTensors.of_copies(own, recipe, layout_of(recipe, device), 3, device)
        for _ in range(2):  # what is made of knobs is made once
            gpu.faults.clear()
            step.advance(tensors.knobs, tensors.seeds, tensors.state, 4)
    assert not gpu.faults
    assert len(given) > 20
    assert all(isinstance(tensor, PretendedTensor) and tensor.is_contiguous() for tensor in given)


# -- the check that a GPU has to pass --------------------------------------------------------------------------------


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_the_check_finds_nothing_where_there_is_nothing(number: int) -> None:
    recipe = Recipe.of([*check.configurations("layered")][number])
    assert check.find_difference(recipe, CPU, emulated_step(recipe)) is None
