"""Exact zero padding: trials of different sizes in one pack give the numbers that each gives at its own sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import spaces
from search.stopping._exploration import Exploration
from spaces import plugins
from spaces.errors import PluginError
from spaces.records import Report, StoredTrial, Trial
from tests.support.padding import knobs_of, settings
from tests.support.plug_ins import example
from tests.support.search_spaces import FAMILIES
from tests.support.trials import FIRST_STEP, config, set_parameters, trial
from workers.engine import step
from workers.engine.pack import Pack
from workers.engine.retraining import retrain
from workers.networks.scorers import LogitScorer, Scorer
from workers.numerics import native, randomness
from workers.numerics.randomness import Purpose, Streams, keep_mask, padded_keep_mask
from workers.training.averaging import Averaging
from workers.training.optimizers import Optimizer
from workers.training.recipe import Recipe, layout_of

SHAPES = [(3, 2, 2, 1, 2), (32, 16, 124, 70, 90), (9, 4, 12, 5, 9), (7, 6, 8, 8, 3)]
"""Tokens, length, width, key width, value width: the least and the largest of Table 1, and two between."""
DROPOUTS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]
KINDS = ["native", "traced"]


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With `native` the native step, with `traced` none of the compiled code."""
    if request.param == "native" and not native.available():
        pytest.skip("no C++ compiler here")
    if request.param == "traced":
        monkeypatch.setattr(step, "find_obstacle", lambda *_: "asked for")
        monkeypatch.setattr(randomness, "library", lambda _: None)
    return request.param


def trained(candidate: Trial) -> tuple[list[Report], dict[str, Tensor], Pack]:
    """All reports of a trial, its parameters before the last step, and its pack."""
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    reports = pack.train(4) + pack.train(1)
    parameters = {name: tensor.clone() for name, tensor in pack.parameters(candidate.number).items()}
    return reports + pack.train(9), parameters, pack


def assert_padding_is_exact(shape: tuple[int, ...], **given: Any) -> None:
    (exact, expected, _), (padded, actual, _) = (
        trained(trial(1, settings(shape, pad=pad, **given), seed=5)) for pad in (False, True)
    )
    assert [(report.step, report.state) for report in exact] == [(4, "running"), (6, "finished")]
    assert [(report.step, report.state) for report in padded] == [(4, "running"), (6, "finished")]
    for report, other in zip(padded, exact, strict=True):
        assert [metric[:3] for metric in report.metrics] == [metric[:3] for metric in other.metrics]
        for metric, truth in zip(report.metrics, other.metrics, strict=True):
            assert math.isclose(metric.value, truth.value, rel_tol=1e-10, abs_tol=1e-10), (metric, truth)
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("dropout", DROPOUTS[::-1])
def test_a_padded_trial_trains_and_is_judged_like_one_that_is_not(kind: str, dropout: tuple[float, float]) -> None:
    assert_padding_is_exact(SHAPES[2], **knobs_of(1, dropout))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[3]])
def test_so_do_the_smallest_and_the_largest(kind: str, shape: tuple[int, ...]) -> None:
    assert_padding_is_exact(shape, **knobs_of(2, DROPOUTS[3]))


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_so_do_uniform_attention_and_dropout_of_whole_tokens(kind: str) -> None:
    given = knobs_of(3, DROPOUTS[3], unit="token")
    given["model"]["scorer"] = {"name": "average"}
    assert_padding_is_exact(SHAPES[3], **given)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.slow
@pytest.mark.parametrize("scorer", ["softmax", "average"])
@pytest.mark.parametrize("unit", ["occurrence", "token"])
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_so_does_every_combination(
    kind: str, shape: tuple[int, ...], dropout: tuple[float, float], unit: str, scorer: str
) -> None:
    given = knobs_of(4, dropout, unit)
    given["model"]["scorer"] = {"name": scorer}
    assert_padding_is_exact(shape, **given)


def loss_and_gradient(recipe: Recipe, named: dict[str, Tensor], sizes: dict[str, float]) -> tuple[Tensor, list[Tensor]]:
    """By torch's own autograd, without stacking or tracing."""
    knobs = {path: torch.tensor(value, dtype=torch.float64) for path, value in sizes.items()}
    bound, leaves = recipe.bind(knobs), {name: tensor.clone().requires_grad_() for name, tensor in named.items()}
    stacked = recipe.bind({path: value[None] for path, value in knobs.items()}).task
    batch = stacked.training(Streams.of(torch.tensor([3]), Purpose.TRAINING_DATA, 0), recipe.training.batch, FIRST_STEP)
    lane_batch = {name: tensor[0] for name, tensor in batch.items()}
    loss = bound.task.loss(bound.model.outputs(leaves, lane_batch, {}), lane_batch)
    return loss, list(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))


LOGIT_SCORERS = [name for name in plugins.names(Scorer) if issubclass(plugins.load(Scorer, name), LogitScorer)]
LOGIT_SCORERS.remove("mixed")  # needs two heads


@pytest.mark.parametrize("scorer", LOGIT_SCORERS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]])
def test_every_scorer_of_logits_is_blind_to_padding(shape: tuple[int, ...], scorer: str) -> None:
    made = settings(shape, pad=True, model={"scorer": example(Scorer, scorer)})
    recipe = Recipe.of(made)
    padded, layout = recipe.pad(), layout_of(recipe)
    flat = layout.initial(torch.tensor([1]))[0] * 20
    exact = Recipe.of(settings(shape, pad=False, model={"scorer": example(Scorer, scorer)}))
    expected, wanted = loss_and_gradient(exact, layout.split(flat), exact.knobs())
    large = layout_of(padded)
    loss, gradients = loss_and_gradient(padded, large.split(large.pad(layout, flat)), recipe.knobs())
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    for gradient, truth in zip(gradients, wanted, strict=True):
        corner = gradient[tuple(slice(extent) for extent in truth.shape)]
        torch.testing.assert_close(corner, truth, rtol=1e-10, atol=1e-10)
        assert gradient.count_nonzero() == corner.count_nonzero(), "padding has no gradient"


def test_tokens_that_are_padding_do_no_harm_where_the_norm_has_no_epsilon() -> None:
    made = settings(SHAPES[2], pad=True, model={"norm_epsilon": 0.0})
    recipe = Recipe.of(made)
    layout, large = layout_of(recipe), layout_of(recipe.pad())
    named = large.split(large.pad(layout, layout.initial(torch.tensor([1]))[0]))
    loss, gradients = loss_and_gradient(recipe.pad(), named, recipe.knobs())
    assert loss.isfinite()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_muon_cannot_be_padded() -> None:
    with pytest.raises(PluginError, match=r"training\.pad_shapes: true, but muon cannot be padded: its rate depends"):
        Recipe.of(settings(SHAPES[2], pad=True, optimizer={"name": "muon"}))


PADDED_OPTIMIZERS = [
    name
    for name in plugins.names(Optimizer)
    if plugins.build(Optimizer, example(Optimizer, name)).padding_obstacle is None
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("optimizer", PADDED_OPTIMIZERS)
@pytest.mark.parametrize("averaging", plugins.names(Averaging))
def test_padding_stays_zero_under_every_optimizer_and_average(kind: str, optimizer: str, averaging: str) -> None:
    given: dict[str, Any] = {"optimizer": example(Optimizer, optimizer), "averaging": example(Averaging, averaging)}
    given["model"] = knobs_of(5, DROPOUTS[3])["model"]
    candidate = trial(0, settings(SHAPES[2], pad=True, **given))
    _, _, pack = trained(candidate)
    state, layout = pack._tensors.state, pack._layout  # pyright: ignore[reportPrivateUsage]
    unpadded = layout_of(Recipe.of(candidate.config))
    flat = unpadded.join(unpadded.split(torch.ones(unpadded.total)))
    padding = layout.pad(unpadded, flat) == 0
    assert int(padding.sum()) == layout.total - unpadded.total > 0
    tensors = [state.parameters, *state.moments.values(), *state.shadow.values()]
    stacked = [tensor[0] for tensor in tensors if tensor.shape[-1:] == padding.shape]
    assert all(bool((tensor[..., padding] == 0).all()) for tensor in stacked)
    assert bool((state.parameters[0][~padding] != 0).any())


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_pack_of_four_shapes_gives_each_the_bits_that_it_has_alone(kind: str) -> None:
    shapes = [(9, 4, 12, 5, 9), (17, 8, 16, 16, 24), (32, 3, 10, 32, 9), (4, 3, 9, 1, 2)]
    given = [knobs_of(seed, (0.1 * seed, 0.05 * seed)) for seed in (1, 2, 3, 4)]
    trials = [
        trial(number, settings(shape, pad=True, dtype="float32", **knobs))
        for number, (shape, knobs) in enumerate(zip(shapes, given, strict=True))
    ]
    assert len({candidate.structure for candidate in trials}) == 1
    pack = Pack(trials[0], width=4)
    pack.fill(trials)
    together = [*pack.train(9), *pack.train(9)]
    for candidate in trials:
        alone = retrain(candidate, steps=6, device="cpu", watch=lambda _: None)
        assert [report for report in together if report.number == candidate.number] == alone


def test_parameters_come_and_go_at_the_trials_own_sizes() -> None:
    candidate = trial(0, settings(SHAPES[2], pad=True))
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    named = {name: torch.randn(tensor.shape).double() for name, tensor in pack.parameters(0).items()}
    assert {name: tuple(tensor.shape) for name, tensor in named.items()}["embedding"] == (9, 12)
    set_parameters(pack, 0, named)
    assert all(torch.equal(tensor, named[name]) for name, tensor in pack.parameters(0).items())


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_random_numbers_do_not_depend_on_padding(kind: str) -> None:
    streams = Streams.of(torch.arange(3), Purpose.DROPOUT, 2)
    sizes, lengths = [5, 70, 12], [3, 70, 1]
    drawn = streams.padded_permutations(11, torch.tensor(sizes).double(), torch.tensor(lengths).double(), 128, 129)
    rates = torch.tensor([0.1, 0.5, 0.9]).double()
    masks = padded_keep_mask(streams, rates, (4, 8, 16), (4, torch.tensor([8, 3, 1]), torch.tensor([16, 5, 7])))
    for lane, (size, length) in enumerate(zip(sizes, lengths, strict=True)):
        stream = Streams(state=streams.state[lane : lane + 1])
        assert torch.equal(drawn[lane, :, :length], stream.permutations(11, size, length)[0])
        assert (drawn[lane, :, length:] == -1).all()
        shape = [(4, 8, 16), (4, 3, 5), (4, 1, 7)][lane]
        corner = masks[lane, : shape[0], : shape[1], : shape[2]]
        assert torch.equal(corner, keep_mask(stream, rates[lane : lane + 1], *shape)[0])


@pytest.mark.parametrize(
    "model", [{"name": "transformer", "width": 6}, {"name": "minimal", "width": 6, "scorer": {"name": "cosformer"}}]
)
def test_a_model_that_cannot_be_padded_says_so(model: dict[str, Any]) -> None:
    made = settings(SHAPES[2], pad=True)
    made["model"] = {**made["model"], **model} if model["name"] == "minimal" else model
    with pytest.raises(PluginError, match=r"training\.pad_shapes: true, but \w+ cannot be padded"):
        Recipe.of(made)


# -- which trials are padded -----------------------------------------------------------------------------------------


def groups(space: spaces.Space, count: int) -> list[Trial]:
    """One trial of each of some groups."""
    uniform = random.Random(0).random
    return [space.sample(number, lambda _: uniform()) for number in range(count)]


def shapes_of(trials: list[Trial], size: Callable[[str, int], int]) -> set[tuple[int, ...]]:
    fields = {"task": ("length", "vocabulary"), "model": ("width", "key_width", "value_width")}
    return {
        tuple(size(field, candidate.config[section][field]) for section, names in fields.items() for field in names)
        for candidate in trials
    }


def test_260_groups_of_table_1_share_few_shapes() -> None:
    exact = groups(spaces.load("set_complement", FAMILIES), 260)
    padded = groups(spaces.load("set_complement", FAMILIES, {"training.pad_shapes": "true"}), 260)
    assert not any(candidate.config["training"]["pad_shapes"] for candidate in exact)
    least = {"vocabulary": 32, "key_width": 32, "value_width": 32}
    shared = shapes_of(padded, lambda field, size: max(least.get(field, 8), 2 ** math.ceil(math.log2(size))))
    assert len(shapes_of(exact, lambda _, size: size)) == 252
    assert len(shared) == 19
    assert len({candidate.structure for candidate in exact}) > 250
    assert len({candidate.structure for candidate in padded}) <= 4 * len(shared)


TABLE_1 = {"length": "1 + floor(2 ** uniform(0, 4))", "width": "int(8, 40)"}
CUT = """
study: test
{block}: {{length: {length}, width: {width}}}
task: {{name: set_complement, length: $length, vocabulary: 20}}
model: {{name: minimal, width: $width, key_width: 6, value_width: 8, scorer: {scorer}}}
optimizer: {{name: adamw, learning_rate: 10 ** uniform(-5, -1)}}
training: {{steps: {steps}{written}}}
search: {{trials: 100000, group: {group}, objective: {{minimize: tvd/raw}}{stopping}}}
"""
OPEN = {"block": "group", "scorer": "softmax", "steps": 200, "written": "", "stopping": "", "group": 10, **TABLE_1}


@pytest.mark.parametrize(
    ("changes", "padded"),
    [
        ({}, True),
        ({"block": "trial"}, True),
        ({"length": "4", "width": "12"}, False),
        ({"length": "4", "width": "12", "group": 1, "steps": 1}, False),
        ({"width": "12"}, True),
        ({"group": 1000}, False),
        ({"steps": 999}, True),
        ({"steps": 1000}, False),
        ({"group": 8, "steps": 10_000}, False),
        ({"group": 7, "steps": 10_000}, True),
        ({"block": "trial", "group": 1000}, True),
        ({"block": "trial", "group": 1000, "steps": 10_000}, True),
        ({"group": 100_000, "steps": 1}, False),
        ({"scorer": "cosformer"}, False),
        ({"stopping": ", stopping: {population: {metric: tvd, every: 50}}"}, False),
        ({"stopping": ", stopping: {asha: {min_steps: 50}}"}, True),
        ({"written": ", pad_shapes: false"}, False),
        ({"written": ", diagnostics: true"}, False),
        ({"written": ", accumulate: 2"}, False),
        ({"written": ", pad_shapes: true", "group": 1000, "steps": 10_000}, True),
        ({"written": ", pad_shapes: true", "length": "4", "width": "12"}, True),
    ],
)
def test_a_space_that_leaves_it_open_is_padded_where_shapes_are_many_and_short(
    changes: dict[str, Any], padded: bool
) -> None:
    for candidate in groups(spaces.parse(CUT.format(**{**OPEN, **changes}), "cut.yaml", FAMILIES), 3):
        Recipe.of(candidate.config)
        assert candidate.config["training"]["pad_shapes"] is padded
        assert f'"pad_shapes":{str(padded).lower()}' in candidate.structure
        width = candidate.config["model"]["width"]
        shared = max(8, 2 ** math.ceil(math.log2(width))) if padded else width
        assert f'"width":{shared}}}' in candidate.structure


def test_whether_a_trial_is_padded_may_depend_on_the_scorer_that_it_draws() -> None:
    scorer = "{choice: [softmax, cosformer]}"
    for candidate in groups(spaces.parse(CUT.format(**{**OPEN, "scorer": scorer}), "cut.yaml", FAMILIES), 20):
        assert candidate.config["training"]["pad_shapes"] == (candidate.config["model"]["scorer"]["name"] == "softmax")
        assert Recipe.of(candidate.config).pad().training.pad_shapes == candidate.config["training"]["pad_shapes"]


def test_a_changed_copy_keeps_its_parents_sizes_even_where_its_structure_leaves_them_open() -> None:
    space = spaces.parse(CUT.format(**{**OPEN, "block": "trial"}), "cut.yaml", FAMILIES)
    for number, parent in enumerate(groups(space, 10)):
        child = Exploration(move=0.3, resample=0.5).child(space, parent, 100, 50, random.Random(number))
        assert child.structure == parent.structure
        assert (child.config["task"], child.config["model"]) == (parent.config["task"], parent.config["model"])
        assert child.config["optimizer"] != parent.config["optimizer"]


@pytest.mark.parametrize(
    "arms", ["", "arms: {plain: {}, decayed: {optimizer.weight_decay: 0.1}}\nseeds: 2\nconfirm: {top: 1, seeds: 2}\n"]
)
@pytest.mark.parametrize(
    "launched_with", [{"search.trials": "10"}, {"search.stopping": "{population: {metric: tvd, every: 50}}"}]
)
def test_a_stored_trial_keeps_its_padding_where_the_space_now_decides_otherwise(
    launched_with: dict[str, str], arms: str
) -> None:
    """One group and a population are not padded; the study then has more groups, and no population."""
    before, after = (
        spaces.parse(CUT.format(**OPEN) + arms, "cut.yaml", FAMILIES, some) for some in (launched_with, {})
    )
    for made, again in zip(groups(before, 5), groups(after, 5), strict=True):
        assert made.config["training"]["pad_shapes"] != again.config["training"]["pad_shapes"]
        restored = after.restore([StoredTrial(made.number, made.draws, config=made.config)])
        assert restored == replace(made, group=restored.group), "later arms have other groups"
        assert after.restore([StoredTrial(made.number, made.draws)]) == again


def test_a_copy_keeps_the_padding_of_its_parent() -> None:
    before, after = (
        spaces.parse(CUT.format(**{**OPEN, "group": group}), "cut.yaml", FAMILIES) for group in (100_000, 10)
    )
    [parent] = groups(before, 1)
    child = after.child(parent, 100, 50, parent.draws)
    assert child.structure == parent.structure
    line = [StoredTrial(0, parent.draws, config=parent.config), StoredTrial(100, child.draws, 50, config=child.config)]
    assert after.restore(line).structure == parent.structure


@pytest.mark.long
def test_the_packaged_spaces_are_not_padded() -> None:
    for name in spaces.packaged_spaces():
        assert not any(
            candidate.config["training"]["pad_shapes"] for candidate in groups(spaces.load(name, FAMILIES), 3)
        ), name


def test_a_scorer_that_counts_all_keys_is_not_padded() -> None:
    counting = {"name": "polynomial", "keys": "all"}
    for scorer in (counting, {"name": "mixed", "second": counting}):
        built = plugins.build(Scorer, scorer)
        assert isinstance(built, LogitScorer)
        assert not built.may_pad
    assert "polynomial counts all keys" in (
        Recipe.of(config(steps=1, model={"scorer": counting})).model.padding_obstacle or ""
    )
    assert Recipe.of(config(steps=1, model={"scorer": {"name": "polynomial"}})).model.padding_obstacle is None


def test_diagnostics_are_not_padded() -> None:
    """They would average over positions that are no part of a sequence."""
    made = settings(SHAPES[2], pad=True)
    made["training"] = {**made["training"], "diagnostics": True}
    with pytest.raises(PluginError, match=r"training\.pad_shapes: true, but diagnostics do not know padding"):
        Recipe.of(made)
