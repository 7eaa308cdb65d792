"""Programs that are generated from a lane's recording: they give what its operations give, alone and in every pack."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import graft
from graft.plugins.collecting import plugins_asked_for
from search.steering.strategies import begin
from spaces import plugins
from spaces.plugins.active import using
from tests.support.ordinary_modules import MODULES, write
from tests.support.pretended_gpu import step_cases
from tests.support.trials import config, trial
from workers.engine import lane_programs
from workers.engine.dropout_masks import draw_masks
from workers.engine.pack import Pack
from workers.engine.step import TracedStep, describe_step, method_of, step_of
from workers.networks.activations._spline import interpolate
from workers.networks.attention import fused_causal_attention
from workers.numerics.codegen.values import CannotGenerate
from workers.numerics.programs.indices import Index, Variable, linear, unravel
from workers.numerics.programs.lowering import Lowering
from workers.numerics.programs.recording import record
from workers.numerics.programs.rules import RULES, knows
from workers.numerics.programs.running import LaneProgram
from workers.numerics.programs.scheduling import Kernel, schedule
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves, tree_map
from workers.training.recipe import Recipe, gradient_of, layout_of

CPU = torch.device("cpu")


# -- functions ---------------------------------------------------------------------------------------------------------

# Of x [3, 4, 5], y [5, 20], a row of numbers z [7], some of them 0, and places n [3, 4] below 5.
FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "functions of one number": lambda x, y, z, n: [
        getattr(x, name)() for name in ("exp", "tanh", "erf", "sigmoid", "sin", "sign", "floor", "relu", "neg", "abs")
    ],
    "logarithms": lambda x, y, z, n: [(x * x + 0.1).log(), (x * x).log1p(), (x * x + 0.01).sqrt(), (x * x + 1).rsqrt()],
    "comparisons": lambda x, y, z, n: [
        torch.where(x > 0.2, x, y[:, :4].mT[None]),
        (x < 0).sum(1).to(x),
        x.clamp(-0.5, 0.5),
    ],
    "sums": lambda x, y, z, n: [x.sum(), x.mean(1), x.sum((0, 2)), x.sum(0), x.sum(-1, keepdim=True), z.sum(0)],
    "extremes": lambda x, y, z, n: [x.amax(1), x.amin((0, 2)), x.amax(-1), (x > -9).all(-1).to(x), (x > 1).any().to(x)],
    "a softmax": lambda x, y, z, n: [x.softmax(-1), x.log_softmax(1), x.logsumexp(-1)],
    "norms": lambda x, y, z, n: [
        F.layer_norm(x, (5,)),
        F.layer_norm(x, (4, 5)),
        F.group_norm(x, 2),
        F.rms_norm(x, (5,)),
        x.var(1),
    ],
    "other axes": lambda x, y, z, n: [
        x.transpose(0, 2).reshape(10, 6) + 1,
        (x * 2).permute(1, 2, 0).flatten() * 3,
        (x + 1).view(6, 10).T.reshape(3, 20).sum(0),
        x.flip(1) + x.flip((0, 2)),
        (x * 3)[:, 1:3, ::2] - 1,
        x[..., None].expand(3, 4, 5, 6).sum(2),
    ],
    "pieces": lambda x, y, z, n: [
        torch.cat([x * 2, x[:, :2]], 1),
        torch.stack([x, x + 1], 1),
        F.pad(x, (1, 2, 0, 3), value=7.0),
        F.pad(x, (0, -2, -1, 1)) * 2,
        *(x + 1).split([1, 3], 1),
    ],
    "sums along an axis": lambda x, y, z, n: [x.cumsum(0), x.cumsum(1) * 2, (x + 1).cumsum(-1), z.cumsum(0)],
    "places": lambda x, y, z, n: [
        F.embedding(n, y),
        x.gather(-1, n[..., None]),
        torch.zeros(3, 4, 5).to(x).scatter_add(-1, n[..., None], x[..., :1]),
        x[0].tril() + x[0].triu(1),
    ],
    "long scatters": lambda x, y, z, n: [
        torch.ones(3, 6, 5).to(x).scatter_add(1, n.repeat(1, 3)[..., None].expand(3, 12, 5), x.repeat(1, 3, 1)),
        torch.zeros(5).to(x).scatter_add(0, n.flatten(), x[..., 0].flatten()),
    ],
    "splines": lambda x, y, z, n: [
        interpolate(x * 2, z, -2.0, 3.0),
        interpolate(y.mT[:, 1:], z * z, torch.tensor(-1.0).double(), torch.tensor(1.5).double()),
    ],
    "products": lambda x, y, z, n: [
        x @ y,
        y.T @ x[0].T,
        x.transpose(1, 2) @ x,
        torch.einsum("abc,cd->bda", x, y),
        F.linear(x, y[:, :5].T.contiguous().T, z[:5]),
        (y @ y.T)[:, :3] @ x[:, :, 0],
        torch.addmm(y[0, :4], y[:4].mT, y[:4, :4]),
    ],
    "large": lambda x, y, z, n: [
        (y[:, None] * y[None]).softmax(-1).sum(0) @ y.T @ y,
        F.gelu(y.mT @ y) @ F.silu(y.mT) + F.softplus(y.mT),
    ],
    "in place": lambda x, y, z, n: [(x @ y).add_(1).mul_(2).relu_(), torch.zeros_like(x).add_(x)],
    "attention": lambda x, y, z, n: [
        F.scaled_dot_product_attention(x, x + 1, x * 2, is_causal=True),
        fused_causal_attention(*(x @ y * 0.1).view(3, 4, 2, 2, 5).permute(3, 0, 2, 1, 4).repeat(2, 1, 1, 1, 1)[:3]),
    ],
}


def arguments(dtype: torch.dtype) -> list[Tensor]:
    """Return the arguments of functions: with zeros, large and small numbers."""
    torch.manual_seed(3)
    x, y, z = torch.randn(3, 4, 5), torch.randn(5, 20) * 3, torch.randn(7)
    z[2] = x[0, 0, 0] = 0.0
    y[0, 0] = 30.0
    return [x.to(dtype), y.to(dtype), z.to(dtype), torch.randint(0, 5, (3, 4))]


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_a_program_gives_what_its_operations_give_and_their_gradients(dtype: torch.dtype, bound: float) -> None:
    """All functions in one program, which is compiled once."""

    def every(x: Tensor, y: Tensor, z: Tensor, n: Tensor) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for name, function in FUNCTIONS.items():
            values, back = torch.func.vjp(lambda x, y, z, f=function: tree_leaves(f(x, y, z, n)), x, y, z)
            along = [torch.ones_like(tensor) * (0.5 + number) for number, tensor in enumerate(values)]
            results[name] = [*values, *back(along)]
        return results

    given_ = arguments(dtype)
    expected = every(*given_)
    program = LaneProgram(every, given_)
    assert program.load()
    actual = iter(program([torch.stack([tensor, tensor.flip(0)]) for tensor in given_]))
    turned = every(*(tensor.flip(0) for tensor in given_))
    wrong: dict[str, float] = {}
    for name, values in expected.items():
        for pair in zip(values, turned[name], strict=True):
            for lane, right in zip(next(actual), pair, strict=True):
                assert lane.dtype == right.dtype
                error = float((lane - right).abs().max()) / max(1.0, float(right.abs().max()))
                if not error <= bound:
                    wrong[name] = max(error, wrong.get(name, 0.0))
    assert not wrong


def test_what_is_no_number_and_infinity_stay_what_they_are() -> None:
    x = torch.tensor([[math.nan, 1.0, -math.inf, math.inf, 0.0, -200.0, 200.0, 1e-30]])

    def function(x: Tensor) -> list[Tensor]:
        return [x.exp(), x.tanh(), x.sigmoid(), x.erf(), x.abs().log(), x.amax(-1), x[:, 1:].amax(-1), x.relu()]

    program = LaneProgram(function, [x])
    assert program.load()
    for tensor, other in zip(program([x[None]]), function(x), strict=True):
        torch.testing.assert_close(tensor[0], other, rtol=1e-5, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sort().values, "sort"),
        (lambda x: x.to(torch.float16) * 2, "torch.float16"),
        (lambda x: x[0].relu_() + x.sum(), "into a tensor that others show"),
    ],
)
def test_what_no_program_does_is_named(function: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(CannotGenerate, match=reason):
        LaneProgram(function, [torch.ones(3, 4)])


def test_memory_that_is_in_use_at_the_same_time_does_not_overlap() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ x.mT).softmax(-1) @ x + x
        return x

    program = LaneProgram(function, [torch.randn(5, 7)])
    lowering = Lowering(record(function, [torch.randn(5, 7)], knows), RULES)
    assert sum(isinstance(step, Kernel) for step in schedule(lowering.steps, [lowering.results[0].buffer])) >= 4
    uses: dict[int, list[int]] = {}
    for number, step in enumerate(program._schedule):
        for buffer in step.buffers:
            uses.setdefault(id(buffer), []).append(number)
    made = [(key, offset, offset + program._size(key)) for key, offset in program._offsets.items()]
    assert max(end for *_, end in made) < sum(end - start for _, start, end in made), "memory is used again"
    for key, start, end in made:
        for other, from_, to in made:
            at_once = max(uses[key][0], uses[other][0]) <= min(uses[key][-1], uses[other][-1])
            assert key == other or not at_once or end <= from_ or to <= start


# -- places ------------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SHAPES, st.data())
def test_a_place_that_is_reshaped_is_the_same_element(shape: list[int], data: st.DataObject) -> None:
    sizes = data.draw(st.permutations(shape))
    names = [Variable(f"o{axis}", size) for axis, size in enumerate(sizes)]
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    indices = unravel(linear(0, strides, [Index.of(name) for name in names]), shape)
    at = [data.draw(st.integers(0, size - 1)) for size in sizes]
    scope = {name.name: value for name, value in zip(names, at, strict=True)}
    values = [eval(index.write().replace("/", "//"), scope) for index in indices]
    flat = sum(value * stride for value, stride in zip(at, strides, strict=True))
    assert values == [flat // math.prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]
    assert all(index.least <= value <= index.most for index, value in zip(indices, values, strict=True))


# -- steps -------------------------------------------------------------------------------------------------------------

FAST = ["gated_recurrence"]


def module_config(name: str, dtype: str = "float32") -> dict[str, Any]:
    """Return the configuration of an ordinary module on a small task."""
    return {
        **config(steps=6, every=3, batch=4, dtype=dtype),
        "task": {"name": "add_mod", "modulus": 13},  # as in the checks of plug-ins: programs are compiled once for both
        "model": {"name": f"own_{name}", "width": 8},
    }


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in MODULES]
)
def test_lanes_of_an_own_model_are_alone_what_they_are_in_packs(name: str, tmp_path: Path) -> None:
    with using(plugins_asked_for([str(write(tmp_path, name))])):
        trials = [trial(number, module_config(name)) for number in range(7)]
        alone = [_reports(candidate, [candidate]) for candidate in trials]
        for width in (2, 7):
            together = _reports(trials[0], trials[:width])
            assert together == sorted(line for lines in alone[:width] for line in lines)


def _reports(first: Any, trials: list[Any]) -> list[Any]:
    pack = Pack(first, width=len(trials))
    pack.fill(trials)
    return sorted((report.number, report.step, report.metrics) for _ in range(2) for report in pack.train(3))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("float64", 1e-9)])
def test_generated_steps_are_the_traced_ones(dtype: str, bound: float, tmp_path: Path) -> None:
    with using(plugins_asked_for([str(write(tmp_path, "transformer_encoder"))])):
        # An epsilon so large that a gradient of nothing but rounding, that of a key's bias, moves nothing.
        calm = {"optimizer": {"name": "adamw", "epsilon": 1e-4}}
        candidate = trial(3, {**module_config("transformer_encoder", dtype), **calm})
        recipe = Recipe.of(candidate.config)
        step, traced = (make(recipe, dtype, CPU) for make in (step_of, TracedStep))
        assert step.kind.startswith("generated ")
        pack = Pack(candidate, width=3)
        pack.fill([candidate])
        states = [pack._tensors.state, pack._tensors.state]
        for number in range(3):
            batch = recipe.task.training(
                Streams.of(pack._tensors.seeds, Purpose.TRAINING_DATA, states[0].step),
                recipe.training.batch,
                states[0].step,
            )
            states = [
                train_step(pack._tensors.knobs, pack._tensors.seeds, state, batch)
                for train_step, state in zip((step, traced), states, strict=True)
            ]
            assert number + 1 == int(states[0].step[0])
        for left, right in zip(*map(tree_leaves, states), strict=True):
            torch.testing.assert_close(left, right, rtol=bound, atol=bound)


def test_the_kind_of_step_says_that_it_is_generated_and_why_it_is_none_by_hand(tmp_path: Path) -> None:
    with using(plugins_asked_for([str(write(tmp_path, "gated_recurrence"))])):
        settings = module_config("gated_recurrence")
        assert describe_step(settings, "cpu").startswith("generated: ")
        assert method_of(settings, "cpu") == "generated"
        pack = Pack(trial(0, settings), width=1)
        pack.fill([trial(0, settings)])
        [report] = pack.train(3)
        assert report.fingerprint is not None
        assert report.fingerprint.step_kind.startswith("generated ")
        assert report.fingerprint.compiler, "bits depend on the compiler"


def test_a_program_that_gives_other_numbers_is_not_used(tmp_path: Path) -> None:
    file = write(tmp_path, "layer_norm_plain")
    wrong = patch("workers.numerics.programs.running.PREAMBLE", _wrong_preamble())
    with using(plugins_asked_for([str(file)])), wrong, patch.object(lane_programs, "_GRADIENTS", {}):
        settings = module_config("layer_norm_plain")
        assert re.search(
            "traced: .*; what is generated gives other numbers than its operations", describe_step(settings, "cpu")
        )
        assert isinstance(step_of(Recipe.of(settings), "one", CPU), TracedStep)


def _wrong_preamble() -> str:
    from workers.numerics.programs.scheduling import PREAMBLE

    return PREAMBLE + "#define sqrt(x) (2 * (x))\n"


def test_a_model_with_an_operation_that_no_program_has_is_traced(tmp_path: Path) -> None:
    with using(plugins_asked_for([str(write(tmp_path, "sorted_topk"))])):
        said = describe_step(module_config("sorted_topk"), "cpu")
        assert re.fullmatch(r"traced: .*; no code is generated for topk", said), said


def gradient_cases() -> dict[str, dict[str, Any]]:
    """Return cases whose gradients differ: no gradient depends on an optimizer, a schedule or an average."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, case in step_cases():
        if "entmax" not in name and "sparsemax" not in name:
            parts = [case.get(section) for section in ("task", "model", "learning", "training")]
            cases.setdefault(plugins.canonical_json(parts), (name, case))
    return dict(cases.values())


CASES = gradient_cases()


@pytest.mark.sampled(1, 42)
@pytest.mark.parametrize("name", sorted(CASES, key=lambda name: name != "gpt with every dropout in float32"))
def test_programs_of_packaged_models_give_the_traced_gradient(name: str) -> None:
    """Programs also serve what a native step trains: with dropout, padding and every loss."""
    candidate = trial(3, CASES[name])
    recipe = Recipe.of(candidate.config).pad()
    program = lane_programs.gradient_by_program(recipe, CPU)
    if isinstance(program, str):
        assert program.startswith("no code is generated for ")
        return
    bound = {torch.float32: 1e-4, torch.float64: 1e-9}[recipe.dtype]
    seeds, step = torch.arange(3), torch.tensor([0, 4, 7])
    knobs = {path: torch.full((3,), value, dtype=torch.float64) for path, value in recipe.knobs().items()}
    batch = recipe.bind(knobs).learning.training(recipe.bind(knobs).task, seeds, recipe.training.batch, step)
    keep = draw_masks(recipe, knobs, seeds, step, batch["inputs"])
    layout = layout_of(recipe)
    parameters = layout.initial(seeds).to(recipe.dtype)
    gradient, loss = program(knobs, parameters, batch, keep)
    for lane in range(3):
        inputs = [tree_map(lambda tensor, at=lane: tensor[at], tree) for tree in (knobs, parameters, batch, keep)]
        right, right_loss = gradient_of(recipe.bind(inputs[0]), layout, *inputs[1:])
        torch.testing.assert_close(gradient[lane], right, rtol=0, atol=bound * float(right.abs().max()))
        torch.testing.assert_close(loss[lane], right_loss, rtol=bound, atol=bound)


@pytest.mark.long
def test_the_first_stage_of_transfers_is_generated() -> None:
    """Its splines have hundreds of kinks, at which float32 rounds slopes to either side."""
    with graft.Space("quick/transfer/curves").load() as space:
        [first] = begin(space, []).ask(range(1))
    assert first.config["learning"]["name"] == "architecture"
    assert not isinstance(lane_programs.gradient_by_program(Recipe.of(first.config).pad(), CPU), str)


# -- programs that are called again, on memory that is no number -------------------------------------------------------


def check_calls(function: Callable[..., Any], lanes: list[Tensor], bound: float = 1e-5) -> None:
    """Call a program twice with all lanes [L, ...] on memory full of NaN: each gives what its operations give."""
    program = LaneProgram(function, [tensor[0] for tensor in lanes])
    assert program.load()
    for _ in range(2):
        actual = program(lanes, spoil=True)
        for lane in range(len(lanes[0])):
            expected = tree_leaves(function(*(tensor[lane] for tensor in lanes)))
            for values, right in zip(actual, expected, strict=True):
                torch.testing.assert_close(values[lane], right, rtol=bound, atol=bound, equal_nan=True)


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (7,), (2, 5), ()])
def test_gradients_of_embeddings_are_added_up_from_zero(shape: tuple[int, ...], width: int) -> None:
    """One index alone sums nothing, and a table of width 1 has its innermost loop over indices."""

    def function(table: Tensor, index: Tensor) -> list[Tensor]:
        values, back = torch.func.vjp(lambda table: F.embedding(index, table).sin(), table)
        return [values, *back(values)]

    index = torch.randint(0, 4, (3, *shape), generator=torch.Generator().manual_seed(2))
    check_calls(function, [numbers(3, 4, width), index])


@pytest.mark.parametrize(
    "function",
    [lambda x, n: F.embedding(n, x), lambda x, n: x.gather(0, n[:, None])],
    ids=["embedding", "gather"],
)
def test_an_index_that_is_out_of_bounds_is_an_error(function: Callable[..., Tensor]) -> None:
    program = LaneProgram(function, [numbers(5, 2), torch.tensor([0, 1, 2])])
    assert program.load()
    for wrong in (5, -1, 1 << 40):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 5"):
            program([numbers(2, 5, 2), torch.tensor([[0, 1, 2], [0, wrong, 2]])])
    check_calls(function, [numbers(3, 5, 2), torch.tensor([[4, 1, 2]] * 3)])


def _writes_a_constant(x: Tensor) -> Tensor:
    constant = torch.zeros(4)
    first = x + constant
    constant.fill_(2.0)
    return first * constant


KEPT = torch.zeros(4)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * torch.rand(4), "rand, whose random numbers would be the same in every step"),
        (lambda x: x + torch.rand_like(x), "rand_like, whose random numbers"),
        (lambda x: F.dropout(x, 0.5), "whose random numbers"),
        (_writes_a_constant, "into a constant that was read before"),
        (lambda x: x * KEPT.add_(1), "add_ into a tensor that is kept from step to step"),
        (lambda x: x.view(torch.int32).to(torch.float32), "aten.view.dtype"),
        (lambda x: x.round(decimals=2), "round with decimals"),
        (lambda x: x.to(torch.uint8).all().to(x), "all of torch.uint8"),
        (lambda x: (x.long() % (x.long() + 1)).to(x), "remainder of whole numbers by a tensor"),
        (lambda x: (x.long() // x.long()).to(x), "floor_divide of whole numbers by a tensor"),
    ],
)
def test_what_would_be_frozen_or_wrong_is_refused(function: Callable[[Tensor], Tensor], reason: str) -> None:
    with pytest.raises(CannotGenerate, match=re.escape(reason)):
        LaneProgram(function, [torch.ones(4)])


def test_numbers_at_the_edge_are_torchs() -> None:
    x = torch.linspace(80.0, 88.722, 96).view(3, 32)
    y = torch.tensor([0.1, -0.1, 0.7, 0.0] * 24).view(3, 32)

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.exp(), x // y, x // 0.1, x.flip(()), x.long() % 7, x.long() // -7]

    assert bool(x.exp().isfinite().all()), "just below the largest number"
    check_calls(function, [x, y], 3e-6)


def test_whole_numbers_are_rounded_and_finite_as_torch_has_it() -> None:
    def function(x: Tensor) -> list[Tensor]:
        n = x.long()
        return [n.floor(), n.ceil(), n.round(), n.trunc(), n.isfinite(), n.isinf(), n.int().floor()]

    check_calls(function, [torch.linspace(-9.5, 9.5, 96).view(3, 32)])


def test_sums_along_an_axis_are_as_exact_as_torchs() -> None:
    x = numbers(3, 20_000).abs() + 1000
    check_calls(lambda x: x.cumsum(-1), [x], 1e-7)


# -- the check before a program is used --------------------------------------------------------------------------------

_RIGHT = LaneProgram.__call__


def _fault_of(tmp_path: Path, changed: Callable[[list[Tensor]], None]) -> Any:
    """Return what the check says of a program whose results are changed."""

    def call(program: LaneProgram, leaves: Any, *, spoil: bool = False) -> list[Tensor]:
        assert spoil, "memory is full of NaN"
        results = _RIGHT(program, leaves, spoil=spoil)
        changed(results)
        return results

    with (
        using(plugins_asked_for([str(write(tmp_path, "layer_norm_plain"))])),
        patch.object(LaneProgram, "__call__", call),
    ):
        recipe = Recipe.of(module_config("layer_norm_plain")).pad()
        return lane_programs.LaneGradient(recipe, "one").find_fault()


def test_the_check_finds_one_wrong_number_of_one_lane_and_one_parameter(tmp_path: Path) -> None:
    calls: list[int] = []

    def second_lane(results: list[Tensor]) -> None:
        least = int(results[0][1].abs().argmin())
        results[0][1, least] += 1e-3 * float(results[0][1].abs().max())

    def second_call(results: list[Tensor]) -> None:
        calls.append(1)
        results[1] += len(calls) - 1

    def infinite(results: list[Tensor]) -> None:
        results[0][2, 0] = math.inf

    assert _fault_of(tmp_path, lambda results: None) is None
    for changed in (second_lane, infinite):
        assert "other numbers than its operations: the gradient of " in str(_fault_of(tmp_path, changed))
    assert "other numbers than its operations: the loss" in str(_fault_of(tmp_path, second_call))
    assert len(calls) == 3, "the second call, and the first of the comparison that allows for kinks"


@pytest.mark.parametrize("read", [lambda x: x.tolist()[0], lambda x: float(x.numpy().sum())], ids=["tolist", "numpy"])
def test_a_number_read_past_torchs_operations_is_refused(read: Callable[[Tensor], float], tmp_path: Path) -> None:
    def reading(recipe: Any, layout: Any, flat: Tensor, *others: Any) -> Any:
        gradient, loss = gradient_of(recipe, layout, flat, *others)
        return gradient * (1 + 0 * read(flat)), loss

    file = write(tmp_path, "layer_norm_plain")
    with using(plugins_asked_for([str(file)])), patch.object(lane_programs, "gradient_of", reading):
        recipe = Recipe.of(module_config("layer_norm_plain")).pad()
        fault = lane_programs.LaneGradient(recipe, "one").find_fault()
    assert "cannot be recorded: RuntimeError: Cannot access data pointer" in str(fault)
