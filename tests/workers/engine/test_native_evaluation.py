"""Outputs that the native steps compute, against the models' own, and evaluation by them."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from spaces.records import Metric
from tests.support.native_layered import ADDITION, COMPLEMENT, CPU, MASKED, TASKS, Case, cases, recipe_of
from tests.support.plug_ins import example
from tests.support.trials import config, trial
from workers.data.tasks import Batch, Task
from workers.engine.lane_programs import as_trained_by
from workers.engine.pack import Pack, evaluation
from workers.engine.pack.evaluation import describe_evaluation, find_obstacle
from workers.engine.step import choose_step
from workers.networks.gradients.native_models import native_model
from workers.numerics import native
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe, evaluation_sets

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

RETRIEVAL = {"name": "max_retrieval", "smallest": 3, "items": 9, "largest": 40}
REGRESSION = {"name": "linear_regression", "dimension": 3, "pairs": 8}


def sets_of(case: Case, count: int) -> dict[str, Batch]:
    """Return the validation set and the last shifted one: tasks have up to fifty, which differ in lengths."""
    sets = evaluation_sets(case.recipe.task, case.seeds, count)
    return dict([next(iter(sets.items())), *list(sets.items())[1:][-1:]])


def native_outputs(case: Case, batch: Batch, lanes: slice = slice(None), label: str = "") -> Tensor:
    recipe = case.recipe.bind({path: values[lanes] for path, values in case.knobs.items()})
    computed = native_model(case.recipe.model.evaluations()[label], case.recipe.task, case.recipe.dtype, CPU)
    assert computed, find_obstacle(case.recipe, label, CPU)
    lane_batch = {name: tensor[lanes] for name, tensor in batch.items()}
    return computed.outputs(recipe.model.evaluations()[label], recipe.task, case.parameters[lanes], lane_batch)


def models_outputs(case: Case, batch: Batch, label: str = "") -> Tensor:
    def one(knobs: Batch, flat: Tensor, batch: Batch) -> Tensor:
        model = case.recipe.bind(knobs).model.evaluations()[label]
        return model.outputs(case.layout.split(flat), batch, {})

    return vmap(one)(case.knobs, case.parameters, batch)


def labels_of(recipe: Recipe) -> list[str]:
    """Return the evaluations whose outputs are native."""
    return [label for label in recipe.model.evaluations() if find_obstacle(recipe, label, CPU) is None]


def assert_models_outputs(recipe: Recipe, seed: int = 0, count: int = 5, tolerance: float = 1e-10) -> None:
    """At the positions that metrics read; zero at others."""
    case = Case(recipe, seed=seed)
    for batch, label in itertools.product(sets_of(case, count).values(), labels_of(recipe)):
        actual, exact = native_outputs(case, batch, label=label), models_outputs(case, batch, label)
        assert actual.shape == exact.shape
        wanted = recipe.task.evaluated_positions(batch)
        if wanted is not None:
            exact = exact.where(wanted[..., None], torch.zeros((), dtype=exact.dtype))
        assert (actual - exact).abs().max() <= tolerance * max(1.0, float(exact.abs().max()))


@pytest.mark.long
@settings(max_examples=40)
@given(cases(), st.integers(1, 9), st.integers(0, 1000))
def test_all_options_crossed(case: tuple[dict[str, Any], dict[str, Any]], count: int, seed: int) -> None:
    assert_models_outputs(recipe_of(*case), seed, count)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize(("name", "task"), [("transformer", ADDITION), ("encoder", {**MASKED, "length": 7})], ids=str)
def test_a_sequence_has_the_same_outputs_alone_and_among_others(
    name: str, task: dict[str, Any], heads: int, dtype: str
) -> None:
    """Few positions are attended to by many sequences side by side, and by a single one in another way.

    Sums over keys have another order then: equal to rounding. How many sequences there are follows from the recipe.
    """
    model = {"name": name, "width": 12 * heads, "heads": heads, "scorer": {"name": "softmax", "temperature": 0.7}}
    case = Case(recipe_of(task, model, dtype=dtype))
    (batch, *_) = sets_of(case, 19).values()
    together = native_outputs(case, batch)
    for n in range(together.shape[1]):
        alone = native_outputs(case, {key: tensor[:, n : n + 1] for key, tensor in batch.items()})
        rounding = 128 * torch.finfo(alone.dtype).eps
        torch.testing.assert_close(alone, together[:, n : n + 1], rtol=rounding, atol=rounding)


@pytest.mark.long
@settings(max_examples=20)
@given(cases(), st.integers(0, 1000))
def test_all_options_in_float32(case: tuple[dict[str, Any], dict[str, Any]], seed: int) -> None:
    """Each within 1e-5 of what the model computes in float64 from the same numbers.

    Where more than that comes of rounding the parameters once more, as where attention is sharp: within 32 times that.
    """
    lanes = Case(recipe_of(*case, dtype="float32"), seed=seed)
    exact = Case(recipe_of(*case), seed=seed)
    exact.parameters = lanes.parameters.double()
    rounded = Case(recipe_of(*case), seed=seed)
    signs = torch.randint(0, 2, exact.parameters.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    rounded.parameters = exact.parameters * (1 + signs * 2**-24)
    sets = sets_of(exact, 5)
    for (condition, batch), label in itertools.product(sets_of(lanes, 5).items(), labels_of(lanes.recipe)):
        actual = native_outputs(lanes, batch, label=label).double()
        truth = models_outputs(exact, sets[condition], label)
        moved = models_outputs(rounded, sets[condition], label) - truth
        wanted = exact.recipe.task.evaluated_positions(batch)
        if wanted is not None:
            truth, moved = (
                tensor.where(wanted[..., None], torch.zeros((), dtype=tensor.dtype)) for tensor in (truth, moved)
            )
        assert (actual - truth).norm() <= max(1e-5 * truth.norm(), 32 * moved.norm())


@settings(max_examples=20)
@given(cases(), st.integers(0, 1000))
def test_bits_do_not_depend_on_the_number_of_lanes(case: tuple[dict[str, Any], dict[str, Any]], seed: int) -> None:
    lanes = Case(recipe_of(*case, dtype="float32"), lanes=4, seed=seed)
    batch = sets_of(lanes, 7)[""]
    for label in labels_of(lanes.recipe):
        together = native_outputs(lanes, batch, label=label)
        for lane in range(4):
            assert torch.equal(native_outputs(lanes, batch, slice(lane, lane + 1), label)[0], together[lane])


@pytest.mark.parametrize("scorer", [{"name": "softmax", "temperature": 0.4}, {"name": "average"}], ids=str)
@settings(max_examples=10)
@given(length=st.integers(2, 9), more=st.integers(1, 9), widths=st.tuples(*[st.integers(1, 20)] * 3))
def test_the_minimal_model(scorer: dict[str, Any], length: int, more: int, widths: tuple[int, int, int]) -> None:
    task = {"name": "set_complement", "length": length, "vocabulary": length + more}
    model = dict(zip(("width", "key_width", "value_width"), widths, strict=True))
    configuration = config(steps=9, every=9, dtype="float64")
    configuration["task"], configuration["training"]["batch"] = task, 5
    configuration["model"] = {
        "name": "minimal",
        "scorer": scorer,
        "embedding_dropout": 0.3,
        "residual_dropout": 0.2,
        **model,
    }
    assert_models_outputs(Recipe.of(configuration), count=37)


@pytest.mark.parametrize("scorer", ["softmax", "ssa", "softmax_learned", "adaptive_temperature"])
def test_attention_pooling(scorer: str) -> None:
    configuration = config(steps=9, every=9, dtype="float64")
    configuration["task"], configuration["model"] = (
        RETRIEVAL,
        {"name": "attention_pooling", "width": 12, "scorer": {"name": scorer}},
    )
    assert_models_outputs(Recipe.of(configuration))


def test_linearised_attention_at_every_temperature() -> None:
    configuration = config(steps=9, every=9, dtype="float64")
    configuration["task"], configuration["model"] = (
        REGRESSION,
        {"name": "linearised_attention", "temperatures": "0.5 2"},
    )
    recipe = Recipe.of(configuration)
    assert len(labels_of(recipe)) == len(recipe.model.evaluations()) - 1  # all but the estimated one
    assert_models_outputs(recipe)


@pytest.mark.parametrize("name", plugins.names(Task))
def test_metrics_read_no_other_positions_than_they_say(name: str) -> None:
    """Other finite outputs there change no metric."""
    task = plugins.build(Task, example(Task, name))
    seeds = torch.arange(2)
    for batch in evaluation_sets(task, seeds, 2 * task.evaluated_together).values():
        wanted = task.evaluated_positions(batch)
        if wanted is None:
            continue
        outputs = Streams.of(seeds, Purpose.INITIAL, 5).normal(*batch["inputs"].shape[1:3], 40)
        others = outputs.where(wanted[..., None], 3 * outputs.flip(1) + 1)
        metrics, changed = (vmap(task.metrics)(values, batch) for values in (outputs, others))
        for metric, values in metrics.items():
            assert torch.equal(values, changed[metric]), metric


def metrics_of(trials: list[Any], monkeypatch: pytest.MonkeyPatch, *, traced: bool) -> dict[Any, list[Metric]]:
    """Return validation of initial parameters, which is the same whatever trains them."""
    with monkeypatch.context() as patched:
        if traced:
            patched.setattr(evaluation, "find_obstacle", lambda *_: "asked for")
        pack = Pack(trials[0], width=len(trials))
        pack.fill(trials)
        return {
            number: list(metrics)
            for number, metrics in pack.evaluate([candidate.number for candidate in trials]).items()
        }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("task", "model"),
    [
        (ADDITION, {"name": "transformer"}),
        (TASKS["encoder"][0], {"name": "encoder", "scorer": {"name": "softmax_evaluation"}}),
        (REGRESSION, {"name": "regressor"}),
        (COMPLEMENT, {"name": "minimal", "width": 12, "key_width": 5, "value_width": 7}),
        (RETRIEVAL, {"name": "attention_pooling", "scorer": {"name": "adaptive_temperature"}}),
        (REGRESSION, {"name": "linearised_attention", "temperatures": "0.5 2"}),
        (REGRESSION, {"name": "linearised_attention", "centred": False}),
    ],
    ids=str,
)
def test_native_evaluation_is_the_traced_one(
    task: dict[str, Any], model: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = config(steps=9, every=9, dtype=dtype, validation_batch=20)
    widths = {} if model["name"] in ("minimal", "linearised_attention") else {"width": 12}
    configuration["task"], configuration["model"], configuration["training"]["batch"] = task, {**widths, **model}, 6
    trials = [trial(number, configuration) for number in range(3)]
    actual, expected = (metrics_of(trials, monkeypatch, traced=traced) for traced in (False, True))
    for number, metrics in actual.items():
        for metric, other in zip(metrics, expected[number], strict=True):
            assert metric[:-1] == other[:-1]
            assert metric.value == pytest.approx(other.value, rel=1e-10 if dtype == "float64" else 1e-5, abs=1e-12)


def test_copies_that_fill_up_the_lanes_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three trials that are due together are evaluated as four lanes, for the recording of the metrics."""
    trials = [trial(number, config()) for number in range(3)]
    pack, computed = Pack(trials[0], width=6), list[int]()
    native_evaluation = evaluation.NativeEvaluation.__call__

    def note(
        self: evaluation.NativeEvaluation, knobs: Batch, flat: Tensor, batch: Batch, used: int
    ) -> dict[str, Tensor]:
        outputs = self._outputs  # pyright: ignore[reportPrivateUsage]

        def note_lanes(*arguments: Any) -> Tensor:
            computed.append(len(arguments[2]))
            return outputs(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(self, "_outputs", note_lanes)
            metrics = native_evaluation(self, knobs, flat, batch, used)
        assert {len(values) for values in metrics.values()} == {4}
        assert all(torch.equal(values[3], values[0]) for values in metrics.values())
        return metrics

    monkeypatch.setattr(evaluation.NativeEvaluation, "__call__", note)
    pack.fill(trials)
    assert len(pack.train(10)) == 3
    assert set(computed) == {3}


@pytest.mark.parametrize(
    ("model", "training", "said"),
    [
        ({"scorer": {"name": "ssa"}}, {}, "native"),
        ({"scorer": {"name": "ssa"}}, {"diagnostics": True}, "traced: diagnostics read attention weights"),
        ({"scorer": {"name": "entmax"}}, {}, "native"),
        (
            {"scorer": {"name": "spline_kernel", "phi": {"name": "chebyshev"}}},
            {},
            "traced: the activation chebyshev is not in the native step: knots is more than a number",
        ),
    ],
    ids=str,
)
def test_a_dry_run_says_what_is_traced(model: dict[str, Any], training: dict[str, Any], said: str) -> None:
    configuration = config(steps=9, every=9)
    configuration["task"], configuration["model"] = (
        COMPLEMENT,
        {"name": "transformer", "width": 12, "heads": 2, **model},
    )
    configuration["training"] |= training
    assert describe_evaluation(configuration, "cpu") == said


@pytest.mark.parametrize(
    ("kind", "again"),
    [("", "native"), ("native AVX2", "native"), ("traced AVX2", "traced"), ("traced cuda 9.0", "native")],
)
def test_what_was_traced_on_a_cpu_is_traced_again(kind: str, again: str) -> None:
    """A trial that had no compiler has its own bits also where there is one."""
    setup = config(steps=2, every=2)
    with as_trained_by(kind):
        assert choose_step(Recipe.of(setup), torch.device("cpu"))[0] == again
        assert describe_evaluation(setup, "cpu").partition(":")[0] == again
