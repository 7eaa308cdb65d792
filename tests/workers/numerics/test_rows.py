"""Row functions that are generated from scorers and activations, against torch in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.plugins.active import using
from tests.support.native import lanes_alone_and_together
from tests.support.native_layered import assert_torchs, recipe_of
from tests.support.outside_parts import write_kernel, write_parts
from tests.support.trials import config, trial
from workers.engine.step import describe_step
from workers.networks.activations import Activation
from workers.networks.gradients import activating
from workers.networks.gradients.scoring import find_obstacle, functions_of
from workers.networks.scorers import KernelScorer, LogitScorer, Scorer, masked_softmax
from workers.numerics import native
from workers.numerics.native.building import Unit
from workers.numerics.rows.activations import ActivationCode, write_activation
from workers.numerics.rows.nodes import NotOfRows
from workers.numerics.rows.running import Found, run, run_activation
from workers.numerics.rows.scorers import ScorerCode, write_scorer
from workers.training.recipe import Recipe

functional = nn.functional
pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

VISIBLE, KEYS = (1, 2, 5, 16, 17, 23), 23
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-10}
CONFIGS: list[dict[str, Any]] = [
    *({"name": name} for name in plugins.names(Scorer) if name != "mixed"),
    {"name": "adaptive_temperature", "phase": "always"},
    {"name": "polynomial", "power": 2, "keys": "all"},
    *({"name": "entmax", "alpha": alpha} for alpha in (1.0, 1.05, 2.0, 3.5)),
    {"name": "entmax_learned", "alpha": 1.02},
]

TABLES = ("chebyshev", "gated", "polynomial", "spline")
"""Activations that learn tables: no formulas of one number, with their default fields."""

Weigh = Callable[[Tensor, Tensor, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


def numbers(rows: int, keys: int, dtype: torch.dtype, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits, gradient = (torch.randn(rows, keys, dtype=torch.float64, generator=generator) for _ in range(2))
    return (scale * logits).to(dtype), gradient.to(dtype)


def exact(
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    logits: Tensor,
    gradient: Tensor,
    visible: tuple[int, ...],
) -> Found:
    """Return the same by torch in float64."""
    mask = torch.arange(logits.shape[1]) < torch.tensor(visible)[:, None]
    leaf = logits.double().requires_grad_()
    parameters = {
        name: torch.tensor([value], dtype=torch.float64, requires_grad=True) for name, value in learned.items()
    }
    constants = {name: torch.tensor(value, dtype=torch.float64) for name, value in knobs.items()}
    weights = weigh(leaf[None], mask, parameters, constants)[0]
    wanted = [leaf, *parameters.values()]
    by = [None] * len(wanted)
    if weights.requires_grad:
        by = [*torch.autograd.grad(weights, wanted, gradient.double(), allow_unused=True)]
    gradients = [torch.zeros_like(tensor) if g is None else g for tensor, g in zip(wanted, by, strict=True)]
    return Found(weights.detach(), gradients[0], torch.cat([*gradients[1:], torch.zeros(0, dtype=torch.float64)]))


def assert_close(actual: Found, wanted: Found, dtype: torch.dtype) -> None:
    for tensor, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(tensor.double(), other, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def of_config(
    settings_: dict[str, Any], dtype: torch.dtype
) -> tuple[ScorerCode, ctypes.CDLL, Weigh, dict[str, float], dict[str, float]]:
    scorer = plugins.build(Scorer, settings_)
    assert isinstance(scorer, LogitScorer | KernelScorer)
    assert find_obstacle(scorer, dtype) is None
    functions = functions_of(scorer, dtype)
    uniform = torch.full((1, 1), 0.5, dtype=torch.float64)
    parameters = {name: parameter for name, parameter in scorer.parameters(1).items() if not name.startswith("phi.")}
    learned = {name: float(parameter.start.values(uniform)) for name, parameter in parameters.items()}

    def weigh(logits: Tensor, visible: Tensor, tensors: Mapping[str, Tensor], knobs: Mapping[str, Tensor]) -> Tensor:
        return plugins.bind(scorer, knobs).weigh(logits, visible, tensors)

    return functions.code, functions.library, weigh, learned, dict(plugins.knobs(scorer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("configuration", CONFIGS, ids=str)
@pytest.mark.sampled(8)
def test_generated_functions_are_the_scorers(configuration: dict[str, Any], dtype: torch.dtype) -> None:
    if configuration.get("alpha", 0) > 2 and dtype == torch.float32:
        pytest.skip("next to where a key enters the support its slope grows without bound")
    code, library, weigh, learned, knobs = of_config(configuration, dtype)
    values = [*learned.values(), *knobs.values()]
    for scale in (2.0, 1e4):  # with 1e4 powers of logits are beyond what float32 adds up to 1e-5
        if scale == 1e4 and configuration["name"] in ("polynomial", "square", "linear", "linearised_softmax", "relu"):
            continue
        logits, gradient = numbers(len(VISIBLE), KEYS, dtype, scale)
        if configuration["name"] in ("cosformer", "spline_kernel"):
            logits = logits.abs()  # it divides by their sum
        actual = run(code, library, values, logits, gradient, VISIBLE)
        assert_close(actual, exact(weigh, learned, knobs, logits, gradient, VISIBLE), dtype)
    logits, gradient = numbers(7, 8, dtype)
    logits = logits.abs() if configuration["name"] in ("cosformer", "spline_kernel") else logits
    actual = run(code, library, values, logits, gradient, (6,) * 7, beside=True)
    assert_close(actual, exact(weigh, learned, knobs, logits, gradient, (6,) * 7), dtype)


@pytest.mark.parametrize("name", ["softmax", "ssa", "entmax"])
def test_a_row_without_visible_keys_weighs_nothing_and_one_key_is_all(name: str) -> None:
    code, library, _, learned, knobs = of_config({"name": name}, torch.float32)
    logits, gradient = numbers(2, KEYS, torch.float32)
    actual = run(code, library, [*learned.values(), *knobs.values()], logits, gradient, (0, 1))
    assert not actual.weights[0].any()
    assert not actual.by_logits[0].any()
    assert actual.weights[1].tolist() == [1, *[0] * (KEYS - 1)]


@pytest.mark.parametrize("alpha", [1.3, 2.0, 2.5, 4.0])
def test_many_keys_that_weigh_the_same_sum_to_one_in_float32(alpha: float) -> None:
    code, library, *_ = of_config({"name": "entmax", "alpha": alpha}, torch.float32)
    zeros, gradient = torch.zeros(1, 600), torch.linspace(-1, 1, 600)[None]
    actual = run(code, library, [alpha], zeros, gradient, (600,))
    torch.testing.assert_close(actual.weights, torch.full_like(zeros, 1 / 600), rtol=1e-5, atol=0)
    torch.testing.assert_close(
        actual.by_logits, gradient * 600 ** (alpha - 2), rtol=1e-3, atol=1e-4 * 600 ** (alpha - 2)
    )


@pytest.mark.parametrize("name", ["softmax", "entmax", "sparsemax", "tanh"])
def test_what_is_no_number_stays_none(name: str) -> None:
    code, library, _, learned, knobs = of_config({"name": name}, torch.float32)
    logits, gradient = numbers(2, KEYS, torch.float32)
    logits[0, 1] = torch.nan
    actual = run(code, library, [*learned.values(), *knobs.values()], logits, gradient, (5, 5))
    assert actual.weights[0].isnan().any()
    assert actual.weights[1].isfinite().all()


# -- scorers that nobody wrote ----------------------------------------------------------------------------------------


def _of_each(name: str, function: Callable[..., Tensor]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.just((name, function))


ELEMENTWISE = st.one_of(
    _of_each("tanh", torch.tanh),
    _of_each("sigmoid", torch.sigmoid),
    _of_each("log1p", lambda z: torch.log1p(z.abs())),
    _of_each("square", torch.square),
    _of_each("root", lambda z: (z.square() + 0.5).sqrt()),
    _of_each("erf", torch.erf),
    _of_each("sine", torch.sin),
    _of_each("power", lambda z: (z.abs() + 0.3) ** 1.7),
    _of_each("clamp", lambda z: z.clamp(min=-1.5, max=2)),
    _of_each("softplus", lambda z: (1 + z.exp()).log()),
)
ROWS = st.one_of(
    _of_each("mean", lambda z, v: torch.where(v, z, 0).sum(-1, keepdim=True) / v.sum(-1, keepdim=True)),
    _of_each("largest", lambda z, v: z.masked_fill(~v, -torch.inf).amax(-1, keepdim=True)),
    _of_each("norm", lambda z, v: (torch.where(v, z, 0).square().sum(-1, keepdim=True) + 1).sqrt()),
    _of_each("logsumexp", lambda z, v: z.masked_fill(~v, -torch.inf).logsumexp(-1, keepdim=True)),
)
ENDS = st.sampled_from(["softmax", "count", "total"])


@st.composite
def random_scorers(draw: st.DrawFn) -> tuple[str, Weigh]:
    steps = draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("each"), ELEMENTWISE), st.tuples(st.sampled_from(["add", "multiply", "divide"]), ROWS)
            ),
            min_size=1,
            max_size=4,
        )
    )
    end = draw(ENDS)

    def weigh(logits: Tensor, visible: Tensor, learned: Mapping[str, Tensor], knobs: Mapping[str, Tensor]) -> Tensor:
        z = logits * learned["a"][..., None, None] + knobs["c"]
        for kind, (_, function) in steps:
            if kind == "each":
                z = function(z)
            else:
                row = function(z, visible)
                z = z - row if kind == "add" else z * row if kind == "multiply" else z / (1 + row.square())
            z = z.clamp(-30, 30)
        if end == "softmax":
            return masked_softmax(z, visible)
        if end == "count":
            return (z / visible.sum(-1, keepdim=True)).masked_fill(~visible, 0.0)
        kernel = (z.square() + 0.1).masked_fill(~visible, 0.0)
        return kernel / kernel.sum(-1, keepdim=True)

    return " ".join([*(f"{kind} {name}" for kind, (name, _) in steps), end]), weigh


def check_random(scorer: tuple[str, Weigh]) -> None:
    _, weigh = scorer
    learned, knobs = {"a": 0.7}, {"c": 0.2}
    code = write_scorer(weigh, learned, knobs, torch.float64)
    library = native.load(Unit("scorer_random", code.text))
    assert library
    logits, gradient = numbers(len(VISIBLE), KEYS, torch.float64)
    wanted = exact(weigh, learned, knobs, logits, gradient, VISIBLE)
    actual = run(code, library, [0.7, 0.2], logits, gradient, VISIBLE)
    for tensor, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-10 * max(1.0, float(other.abs().max())))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(random_scorers())
def test_random_scorers_are_generated(scorer: tuple[str, Weigh]) -> None:
    check_random(scorer)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(random_scorers())
def test_many_random_scorers_are_generated(scorer: tuple[str, Weigh]) -> None:
    check_random(scorer)


# -- activations ------------------------------------------------------------------------------------------------------

ACTIVATIONS: list[dict[str, Any]] = [
    *({"name": name} for name in plugins.names(Activation) if name not in TABLES),
    {"name": "gelu", "form": "tanh"},
    {"name": "gated", "gate": {"name": "sinc", "frequency": 0.5}},
]

ApplyTo = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


def assert_activation_is_exact(
    apply: ApplyTo,
    code: ActivationCode,
    library: ctypes.CDLL,
    learned: Mapping[str, Tensor],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
) -> None:
    """Values and gradients of numbers near 0 and of large ones, against torch in float64."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(9, code.parts * KEYS, dtype=torch.float64, generator=generator)
    hidden[0] *= 1e4
    hidden[1] *= 12
    hidden[2, ::3] = 0
    hidden = hidden.to(dtype)
    gradient = torch.randn(9, KEYS, dtype=torch.float64, generator=generator).to(dtype)
    actual = run_activation(code, library, [*map(float, learned.values()), *knobs.values()], hidden, gradient)
    leaf = hidden.double().requires_grad_()
    parameters = {name: value.detach().double().requires_grad_() for name, value in learned.items()}
    constants = {name: torch.tensor(value, dtype=torch.float64) for name, value in knobs.items()}
    values = apply(leaf, parameters, constants)
    by = torch.autograd.grad(values, [leaf, *parameters.values()], gradient.double(), materialize_grads=True)
    wanted = values.detach(), by[0], torch.cat([*(tensor.view(1) for tensor in by[1:]), torch.zeros(0).double()])
    for tensor, other in zip(actual, wanted, strict=True):
        size = max([1.0, *other.abs().flatten().tolist()]) if tensor is actual.by_learned else 1.0  # a sum of many
        torch.testing.assert_close(tensor.double(), other, rtol=CLOSE[dtype], atol=CLOSE[dtype] * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("configuration", ACTIVATIONS, ids=str)
def test_generated_functions_are_the_activations(configuration: dict[str, Any], dtype: torch.dtype) -> None:
    activation = plugins.build(Activation, configuration)
    assert activating.FUNCTIONS.find_obstacle(activation, dtype) is None
    code, library = activating.FUNCTIONS.load(activation, dtype)
    knobs = dict(plugins.knobs(activation))

    def apply(values: Tensor, learned: Mapping[str, Tensor], knob_values: Mapping[str, Tensor]) -> Tensor:
        return plugins.bind(activation, knob_values).apply(values, learned)

    assert_activation_is_exact(apply, code, library, {}, knobs, dtype)


OF_TORCH: dict[str, tuple[int, ApplyTo]] = {
    "silu": (1, lambda x, learned, knobs: functional.silu(x)),
    "elu": (1, lambda x, learned, knobs: functional.elu(x)),
    "leaky_relu": (1, lambda x, learned, knobs: functional.leaky_relu(x, 0.1)),
    "softplus": (1, lambda x, learned, knobs: functional.softplus(x)),
    "mish": (1, lambda x, learned, knobs: functional.mish(x)),
    "hardswish": (1, lambda x, learned, knobs: functional.hardswish(x)),
    # Not hardsigmoid: torch's own slope of it has a sixth in float32, whatever the precision.
    "selu": (1, lambda x, learned, knobs: functional.selu(x)),
    "softsign": (1, lambda x, learned, knobs: functional.softsign(x)),
    "asinh": (1, lambda x, learned, knobs: x.asinh()),
    "atan": (1, lambda x, learned, knobs: x.atan()),
    # Of numbers up to 20: the sine of 10,000 is rounded away before it is taken.
    "snake": (1, lambda x, learned, knobs: x + (x.clamp(-20, 20) * knobs["w"]).sin().square() / knobs["w"]),
    "glu": (2, lambda x, learned, knobs: functional.glu(x)),
    "bilinear": (2, lambda x, learned, knobs: x[..., : x.shape[-1] // 2] * x[..., x.shape[-1] // 2 :].tanh()),
    "both": (2, lambda x, learned, knobs: torch.mul(*functional.gelu(x).chunk(2, dim=-1))),
    "prelu": (1, lambda x, learned, knobs: torch.where(x > 0, x, learned["a"] * x)),
    "swish": (1, lambda x, learned, knobs: x * (learned["a"] * x).sigmoid() * knobs["w"]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["swish", "glu", "mish", *sorted(OF_TORCH.keys() - {"swish", "glu", "mish"})])
def test_an_activation_of_torchs_own_functions_is_generated(name: str) -> None:
    parts, apply = OF_TORCH[name]
    learned = {"a": torch.tensor(0.7, dtype=torch.float64)}
    for dtype in (torch.float32, torch.float64):
        parameters = {name: value.to(dtype) for name, value in learned.items()}
        code = write_activation(apply, parts, parameters, {"w": 1.3}, dtype)
        library = native.load(Unit("activation_test", code.text))
        assert library
        assert_activation_is_exact(apply, code, library, parameters, {"w": 1.3}, dtype)


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (lambda x, learned, knobs: x.softmax(-1), "keys that are not visible"),
        (lambda x, learned, knobs: x.tanh().flip(-1), "flip is not known"),
        (lambda x, learned, knobs: x * learned["table"], "table is more than a number"),
        (lambda x, learned, knobs: x.chunk(2, -1)[0], "some of the keys of a row|one number of each channel"),
    ],
)
def test_what_is_no_function_of_single_channels_says_why(apply: ApplyTo, reason: str) -> None:
    with pytest.raises(NotOfRows, match=reason):
        write_activation(apply, 1, {"table": torch.ones(32)} if "table" in reason else {}, {}, torch.float32)


# -- what is no function of rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weigh", "reason"),
    [
        (lambda z, v, learned, knobs: masked_softmax(z, v).cumsum(-1), "cumsum is not known"),
        (lambda z, v, learned, knobs: masked_softmax(z - z.mean(-2, keepdim=True), v), "it mixes rows"),
        (lambda z, v, learned, knobs: masked_softmax(z - z.mean(-1, keepdim=True), v), "keys that are not visible"),
        (lambda z, v, learned, knobs: z.softmax(-1), "keys that are not visible"),
        (lambda z, v, learned, knobs: z.tanh(), "its weights of invisible keys are not 0"),
        (lambda z, v, learned, knobs: masked_softmax(z * float(z.amax()), v), "it takes a number out of a tensor"),
    ],
)
def test_what_is_no_function_of_single_rows_says_why(weigh: Weigh, reason: str) -> None:
    with pytest.raises(NotOfRows, match=reason):
        write_scorer(weigh, {}, {}, torch.float32)


def test_only_a_scorer_that_learns_nothing_has_functions_for_some_values_of_a_knob() -> None:
    def weigh(z: Tensor, visible: Tensor, learned: Mapping[str, Tensor], knobs: Mapping[str, Any]) -> Tensor:
        return masked_softmax(z * knobs["c"] * sum(learned.values(), 1.0), visible)

    for learned in ({}, {"a": 0.7}):
        code = write_scorer(weigh, learned, {"c": 0.2}, torch.float32, {"c": [0.5]})
        assert ("namespace special_0" in code.text) is not bool(learned)


OF_A_KNOB = {
    "rooted": ("math.sqrt(self.sharp)", "it takes a number out of a tensor"),
    "branched": ("(2.0 if self.sharp > 3 else 1.0)", "it takes a number out of a tensor"),
    "looked_at": ("float(torch.as_tensor(self.sharp).numpy())", "it cannot be compared with torch"),
}
SHARP = '''
"""An own part, with a number out of its knob."""

import math
from dataclasses import dataclass

import torch

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.networks.scorers import LogitScorer, masked_softmax


@dataclass(frozen=True, kw_only=True)
class Scored(LogitScorer):
    """A factor from a knob."""

    sharp: float = knob(1.0)

    def weigh(self, logits, visible, learned):
        return masked_softmax(logits * FACTOR, visible)


@dataclass(frozen=True, kw_only=True)
class Active(Activation):
    """A factor from a knob."""

    sharp: float = knob(1.0)

    def apply(self, values, learned):
        return values.tanh() * FACTOR
'''


@pytest.mark.parametrize("name", OF_A_KNOB)
def test_a_number_out_of_a_knob_is_never_a_constant_of_the_compiled_code(tmp_path: Path, name: str) -> None:
    factor, reason = OF_A_KNOB[name]
    (tmp_path / f"{name}.py").write_text(SHARP.replace("FACTOR", factor))
    with using(plugins_asked_for([str(tmp_path / f"{name}.py")])):
        scorer, activation = plugins.build(Scorer, {"name": name}), plugins.build(Activation, {"name": name})
        assert reason in str(find_obstacle(scorer, torch.float32))
        assert reason in str(activating.find_obstacle(activation, torch.float32))


# -- in the steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize(
    ("task", "name"),
    [({"name": "add_mod", "modulus": 7}, "transformer"), ({"name": "affine", "points": 9}, "regressor")],
)
def test_an_activation_of_an_own_file_is_native_and_exact(
    tmp_path: Path, task: dict[str, Any], name: str, per_layer: bool
) -> None:
    with using(plugins_asked_for(write_parts(tmp_path))):
        model = {"name": name, "width": 8, "heads": 2, "depth": 2, "mlp_multiple": 2, "activation_per_layer": per_layer}
        setup = config(steps=9, every=9, dtype="float64")
        setup["task"], setup["model"] = task, {**model, "activation": {"name": "curved", "bend": 0.4}}
        assert describe_step(setup, "cpu") == "native"
        assert_torchs(recipe_of(task, setup["model"]))


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ({"name": "add_mod", "modulus": 7}, {"name": "transformer", "width": 8, "heads": 2}),
        ({"name": "affine", "points": 9}, {"name": "regressor", "width": 8, "heads": 2}),
        (
            {"name": "set_complement", "length": 4, "vocabulary": 9},
            {"name": "minimal", "width": 6, "key_width": 4, "value_width": 4},
        ),
    ],
    ids=str,
)
def test_a_scorer_of_an_own_file_is_native(tmp_path: Path, task: dict[str, Any], model: dict[str, Any]) -> None:
    with using(plugins_asked_for(write_parts(tmp_path))):
        setup = config(steps=9, every=9, dtype="float32")
        setup["task"], setup["model"] = task, {**model, "scorer": {"name": "bent"}}
        assert describe_step(setup, "cpu") == "native"


def test_a_kernel_of_an_own_file_is_native_and_exact_in_every_model(tmp_path: Path) -> None:
    """With features, factors by position, a knob and a learned number of each head."""
    with using(plugins_asked_for([*write_parts(tmp_path), write_kernel(tmp_path)])):
        scorer = {"name": "near", "power": 1.7, "phi": {"name": "curved", "bend": 0.4}}
        for task, model in (
            ({"name": "add_mod", "modulus": 7}, {"name": "transformer", "width": 8, "heads": 2}),
            ({"name": "affine", "points": 9}, {"name": "regressor", "width": 8, "heads": 2, "canon": "AB"}),
            ({"name": "max_retrieval", "smallest": 1, "items": 9}, {"name": "attention_pooling", "width": 12}),
            (
                {"name": "set_complement", "length": 4, "vocabulary": 9},
                {"name": "minimal", "width": 6, "key_width": 5, "value_width": 4, "embedding_dropout": 0.3},
            ),
        ):
            setup = config(steps=9, every=9, dtype="float64")
            setup["task"], setup["model"], setup["training"]["batch"] = task, {**model, "scorer": scorer}, 5
            assert describe_step(setup, "cpu") == "native"
            assert_torchs(Recipe.of(setup))


@pytest.mark.parametrize(("first", "second"), [(2.0, 1.2), (1.5, 2.0)])
def test_heads_side_by_side_have_their_own_knobs(first: float, second: float) -> None:
    parts = {"first": {"name": "entmax", "alpha": first}, "second": {"name": "entmax", "alpha": second}}
    model = {"name": "transformer", "width": 8, "heads": 2, "scorer": {"name": "mixed", **parts}}
    assert_torchs(recipe_of({"name": "add_mod", "modulus": 7}, model))


MIXED = {"name": "mixed", "first": {"name": "entmax_learned"}, "second": {"name": "sa_softmax"}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("width", [2, 7, 33])
@pytest.mark.parametrize("scorer", [MIXED, {"name": "cosformer"}, {"name": "spline_kernel"}], ids=str)
def test_a_trial_has_the_same_bits_in_packs_of_any_width(width: int, scorer: dict[str, Any]) -> None:
    setup = config(steps=4, every=2, dtype="float32")
    setup["task"] = {"name": "add_mod", "modulus": 7}
    setup["model"] = {"name": "transformer", "width": 8, "heads": 2, "scorer": scorer}
    setup["training"]["batch"] = 9
    in_pack, alone = lanes_alone_and_together([trial(number, setup) for number in range(width)])
    assert in_pack == alone
