"""Quantifiers and affine functions in context: data, curriculum and metrics against plain Python and numpy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import spaces
from graft.plugins.families import families
from search.steering.strategies import begin
from spaces import plugins
from spaces.records import Report, Trial
from tests.support.pack import reports_of
from tests.support.trials import FIRST_STEP, config, trial
from workers.data.tasks import Batch
from workers.data.tasks._in_context import InContext
from workers.data.tasks.affine import Affine, least_squares
from workers.data.tasks.every import Every
from workers.data.tasks.some import Some
from workers.engine.pack import Pack
from workers.networks.models.regressor import Regressor
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

SAMPLES = 1000
SMALL: dict[str, dict[str, int]] = {
    "every": {"points": 12, "test_length": 24, "test_length_step": 8, "test_sigma": 9, "test_sigma_step": 4},
    "some": {"points": 12, "test_length": 24, "test_length_step": 8, "test_sigma": 9, "test_sigma_step": 4},
    "affine": {"points": 12, "test_functions": 3, "test_inputs": 4, "test_inputs_step": 3, "slope": 5, "reach": 2},
}
TRUTH: dict[str, Callable[[list[float]], bool]] = {
    "every": lambda numbers: all(number > 0 for number in numbers),
    "some": lambda numbers: any(number > 0 for number in numbers),
}
QUANTIFIERS = {"every": Every(**SMALL["every"]), "some": Some(**SMALL["some"])}
AFFINE = Affine(**SMALL["affine"])
TASKS: dict[str, InContext] = {**QUANTIFIERS, "affine": AFFINE}


def streams(seed: int = 3, purpose: Purpose = Purpose.VALIDATION_DATA) -> Streams:
    return Streams.of(torch.tensor([seed, seed + 1]), purpose, 0)


def splits(task: InContext, seed: int = 3, count: int = SAMPLES) -> dict[str, Batch]:
    """Every set that the task is trained or evaluated on, of two lanes."""
    return {
        "training": task.training(streams(seed, Purpose.TRAINING_DATA), count, FIRST_STEP),
        "validation": task.validation(streams(seed), count),
        **task.shifted_sets(streams(seed + 50), count),
    }


def read(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """All x [M, n] and y [M, n] of a set, of its lanes one after the other, out of what a model reads and predicts."""
    inputs = batch["inputs"][..., 0].flatten(0, 1).double().numpy()
    targets = batch["targets"].flatten(0, 1).double().numpy()
    assert inputs.shape[-1] == 2 * targets.shape[-1] - 1
    assert (inputs[:, 1::2] == targets[:, :-1]).all(), "each y follows its x, but for the last, which is not given"
    return inputs[:, ::2], targets


def said(task: InContext, batch: Batch, predictions: np.ndarray) -> dict[str, float]:
    """Return what is reported of the first lane if these [N, n] are predicted; elsewhere the model writes anything."""
    outputs = torch.full((*batch["inputs"].shape[1:3], 1), 77.0, dtype=torch.float64)
    outputs[:, ::2, 0] = torch.from_numpy(predictions)
    metrics = task.metrics(outputs, {name: tensor[0] for name, tensor in batch.items()})
    return dict(task.summary({name: float(values.double().mean()) for name, values in metrics.items()}))


# --- data


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_gives_the_same_data_in_any_company_and_another_seed_other_data(name: str) -> None:
    task = TASKS[name]
    whole, again, other = splits(task), splits(task), splits(task, seed=9)
    for condition, batch in whole.items():
        for key, tensor in batch.items():
            assert torch.equal(tensor, again[condition][key])
        assert not torch.equal(batch["inputs"], other[condition]["inputs"])
        assert not torch.equal(batch["inputs"][0], batch["inputs"][1]), "lanes have data of their own"
    single = Streams.of(torch.tensor([4]), Purpose.VALIDATION_DATA, 0)
    assert torch.equal(task.validation(single, SAMPLES)["inputs"][0], whole["validation"]["inputs"][1])


@pytest.mark.parametrize("name", QUANTIFIERS)
def test_answers_are_those_of_any_and_all_on_every_prefix_of_every_split(name: str) -> None:
    for condition, batch in splits(QUANTIFIERS[name]).items():
        x, y = read(batch)
        assert len(x) == 2 * SAMPLES
        for numbers, answers in zip(x.tolist(), y.tolist(), strict=True):
            expected = [1.0 if TRUTH[name](numbers[: end + 1]) else -1.0 for end in range(len(numbers))]
            assert answers == expected, condition


@pytest.mark.parametrize("name", QUANTIFIERS)
def test_numbers_have_the_spread_and_the_length_that_the_condition_says(name: str) -> None:
    sets = QUANTIFIERS[name].shifted_sets(streams(), SAMPLES)
    lengths = [8, 16, 24]
    expected = {f"length={length} sigma={sigma}": (length, sigma) for length in lengths for sigma in (1, 5, 9)}
    assert [*sets] == [*expected, "deviant=10", "deviant=100"]
    for condition, (length, sigma) in expected.items():
        x, _ = read(sets[condition])
        assert x.shape[1] == length
        assert stats.kstest(x.ravel(), stats.norm(scale=sigma).cdf).pvalue > 1e-4, condition
    assert QUANTIFIERS[name].longest == 2 * 24 - 1
    assert QUANTIFIERS[name].context == 2 * 12 - 1


def test_training_numbers_are_standard_normal_and_independent() -> None:
    x, _ = read(Every(points=12).training(streams(), 4000, FIRST_STEP))
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-4
    assert np.abs(np.corrcoef(x.T) - np.eye(12)).max() < 5 / math.sqrt(len(x))


@pytest.mark.parametrize("name", TASKS)
def test_training_and_validation_have_numbers_of_the_scale_and_shifted_sets_their_own(name: str) -> None:
    whole, plain = splits(replace(TASKS[name], input_scale=30)), splits(TASKS[name])
    for split in ("training", "validation"):
        assert torch.allclose(whole[split]["inputs"][..., ::2, :], 30 * plain[split]["inputs"][..., ::2, :], rtol=1e-6)
    for condition in plain.keys() - {"training", "validation"}:
        assert torch.equal(whole[condition]["inputs"], plain[condition]["inputs"]), condition


def test_affine_prompts_of_a_wider_scale_lie_on_the_lines_of_the_plain_ones_and_have_the_chance_of_the_facts() -> None:
    wide = Affine(**SMALL["affine"], input_scale=3)
    (x, y), (plain, expected) = (read(task.validation(streams(), 20_000)) for task in (wide, AFFINE))
    assert np.allclose(x, 3 * plain, rtol=1e-6)
    assert np.allclose(y - y[:, :1], 3 * (expected - expected[:, :1]), rtol=1e-4, atol=1e-4)
    error = said(wide, wide.validation(streams(), 20_000), np.zeros((20_000, 12)))["zero_mse"]
    assert math.isclose(error, float(wide.facts()["chance"]), rel_tol=0.05)


@pytest.mark.parametrize("name", QUANTIFIERS)
@pytest.mark.parametrize("size", [10, 100])
def test_a_deviant_sequence_has_one_extreme_number_anywhere_and_answers_from_there_on_count(
    name: str, size: int
) -> None:
    batch = QUANTIFIERS[name].shifted_sets(streams(), SAMPLES)[f"deviant={size}"]
    x, _ = read(batch)
    extreme = np.abs(x) == size
    assert (extreme.sum(1) == 1).all()
    assert (np.abs(x[~extreme]) < 7).all()
    assert (batch["wanted"].flatten(0, 1).numpy() == (extreme.cumsum(1) > 0)).all()
    places = extreme.argmax(1)
    assert stats.chisquare(np.bincount(places, minlength=12)).pvalue > 1e-4
    assert stats.binomtest(int((x[extreme] > 0).sum()), len(x)).pvalue > 1e-4
    late = places >= 6
    assert stats.binomtest(int((x[extreme] > 0)[late].sum()), int(late.sum())).pvalue > 1e-4


@pytest.mark.long
def test_affine_prompts_lie_on_lines_whose_coefficients_and_inputs_have_the_spread_of_the_condition() -> None:
    sets = splits(AFFINE)
    pairs = [(functions, inputs) for functions in (1, 2, 3) for inputs in (1, 4)]
    spreads = {f"functions={functions} inputs={inputs}": (functions, inputs) for functions, inputs in pairs}
    other = ["deviant=10", "deviant=100", "slope=5 reach=2", "slope=1 reach=10"]
    assert [*sets] == ["training", "validation", *spreads, *other]
    for condition, (functions, inputs) in (spreads | {"training": (1, 1), "validation": (1, 1)}).items():
        x, y = read(sets[condition])
        assert len(x) == 2 * SAMPLES
        lines = np.array([np.polyfit(*points, 1) for points in zip(x, y, strict=True)])
        assert np.allclose(lines[:, :1] * x + lines[:, 1:], y, atol=2e-5 * functions * inputs), condition
        assert stats.kstest(x.ravel(), stats.norm(scale=inputs).cdf).pvalue > 1e-4, condition
        for column in lines.T:
            assert stats.kstest(column, stats.norm(scale=functions).cdf).pvalue > 1e-4, condition
        assert abs(np.corrcoef(lines.T)[0, 1]) < 5 / math.sqrt(len(x))


def test_a_deviant_affine_prompt_has_a_wide_first_input_alone() -> None:
    x, y = read(AFFINE.shifted_sets(streams(), SAMPLES)["deviant=100"])
    assert stats.kstest(x[:, 0], stats.norm(scale=100).cdf).pvalue > 1e-4
    assert stats.kstest(x[:, 1:].ravel(), "norm").pvalue > 1e-4
    slopes = (y[:, 2] - y[:, 1]) / (x[:, 2] - x[:, 1])
    assert np.allclose(y[:, 0] - y[:, 1], slopes * (x[:, 0] - x[:, 1]), rtol=1e-2, atol=1e-2)


def test_the_prompts_for_boundary_values_are_lines_through_zero_on_a_shuffled_grid() -> None:
    sets = AFFINE.shifted_sets(streams(), SAMPLES)
    for slope, reach in ((5, 2), (1, 10)):
        x, y = read(sets[f"slope={slope} reach={reach}"])
        assert np.allclose(np.sort(x), np.linspace(-reach, reach, 12), atol=1e-6)
        assert np.allclose(y, slope * x, atol=1e-5)
        assert len(np.unique(x, axis=0)) > SAMPLES
        assert stats.chisquare(np.bincount(x.argmax(1), minlength=12)).pvalue > 1e-4


def test_the_questions_of_a_line_are_its_last_points_on_a_grid_and_answers_are_the_last_predictions() -> None:
    task = Affine(**SMALL["affine"], questions=5)
    sets = task.shifted_sets(streams(), SAMPLES)
    assert [name for name in sets if "asked" in name] == [
        f"slope={slope} asked={asked:g}"
        for slope, reach in ((5, 2), (1, 10))
        for asked in np.linspace(-reach, reach, 5)
    ]
    x, y = read(sets["slope=5 asked=-1"])
    assert np.allclose(y, 5 * x, atol=1e-5)
    assert (x[:, -1] == -1).all()
    assert stats.kstest(x[:, :-1].ravel(), "norm").pvalue > 1e-4
    batch = {name: tensor[0] for name, tensor in sets["slope=5 asked=-1"].items()}
    outputs = torch.arange(SAMPLES * 23).double().view(SAMPLES, 23, 1)
    assert torch.equal(task.metrics(outputs, batch)["answer"], outputs[:, -1, 0])
    assert "answer" not in AFFINE.metrics(outputs, batch)


# --- curriculum


def test_prompts_grow_from_11_points_by_two_every_2000_steps_up_to_40_for_each_lane_by_its_own_step() -> None:
    expected = {0: 11, 1999: 11, 2000: 13, 3999: 13, 4000: 15, 27_999: 37, 28_000: 39, 30_000: 40, 500_000: 40}
    steps = torch.tensor([*expected])
    lanes = Streams.of(torch.arange(len(expected)), Purpose.TRAINING_DATA, steps)
    for task in (Every(), Some(), Affine()):
        wanted = task.training(lanes, 5, steps)["wanted"]
        assert wanted.shape == (len(expected), 5, 40)
        assert wanted.sum(-1).tolist() == [[count] * 5 for count in expected.values()]
        assert torch.equal(wanted, wanted.sort(-1, descending=True).values), "the first points"


def test_a_lane_has_the_curriculum_of_its_own_knobs() -> None:
    knobs = {"start": [3.0, 12.0], "growth": [4.0, 1.0], "every": [10.0, 5.0]}
    bound = plugins.bind(Every(points=12), {f"curriculum_{key}": torch.tensor(v).double() for key, v in knobs.items()})
    assert bound.training(streams(), 1, torch.tensor([19, 4]))["wanted"].sum(-1).tolist() == [[7], [12]]


def test_points_beyond_the_curriculum_have_no_part_in_the_loss() -> None:
    task = Affine(points=6, curriculum_start=4)
    batch = {name: tensor[0] for name, tensor in task.training(streams(), 5, FIRST_STEP).items()}
    outputs = torch.randn(5, 11, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = np.square(outputs[:, :8:2, 0].numpy() - batch["targets"][:, :4].numpy()).mean()
    assert math.isclose(float(task.loss(outputs, batch)), expected, rel_tol=1e-12)
    outputs[:, 8:] = math.inf
    outputs[:, 1::2] = math.inf
    assert torch.isnan(task.loss(outputs, batch)), "a prediction that is not finite is not hidden by its weight of 0"


# --- losses and metrics


@pytest.mark.parametrize("scale", [1.0, 50.0, 1000.0])
def test_the_loss_of_a_quantifier_is_the_cross_entropy_of_the_sign(scale: float) -> None:
    task = QUANTIFIERS["some"]
    batch = {name: tensor[0] for name, tensor in task.training(streams(), 64, torch.tensor([10**6] * 2)).items()}
    outputs = scale * torch.randn(64, 23, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outputs.requires_grad_()
    targets = (batch["targets"].double() + 1) / 2
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, ::2, 0], targets)
    loss = task.loss(outputs, batch)
    assert math.isclose(loss.item(), expected.item(), rel_tol=1e-12)
    (gradient,) = torch.autograd.grad(loss, outputs)
    (expected_gradient,) = torch.autograd.grad(expected, outputs)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-15)


def test_the_loss_of_a_quantifier_has_its_slope_at_zero_too() -> None:
    zeros = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(Every().losses(zeros, torch.tensor([[1.0, -1.0]])).sum(), zeros)
    assert gradient.tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize("name", QUANTIFIERS)
@pytest.mark.parametrize("condition", ["validation", "length=24 sigma=5", "deviant=100"])
def test_accuracies_equal_a_count_by_hand(name: str, condition: str) -> None:
    task = QUANTIFIERS[name]
    batch = splits(task, count=200)[condition]
    x, _ = read({key: tensor[:1] for key, tensor in batch.items()})
    predictions = np.random.default_rng(2).normal(size=x.shape) + 0.3 * x
    pairs: list[tuple[bool, bool]] = []
    last: list[bool] = []
    for numbers, answers in zip(x.tolist(), predictions.tolist(), strict=True):
        extreme = [abs(number) == 100 for number in numbers]
        start = extreme.index(True) if any(extreme) else 0
        row = [(TRUTH[name](numbers[: end + 1]), answers[end] > 0) for end in range(start, len(numbers))]
        pairs += row
        last.append(row[-1][0] == row[-1][1])
    hits = {truth: [label == other for label, other in pairs if label == truth] for truth in (True, False)}
    metrics = said(task, batch, predictions)
    assert math.isclose(metrics["accuracy"], np.mean(hits[True] + hits[False]), rel_tol=1e-12)
    assert math.isclose(metrics["balanced_accuracy"], (np.mean(hits[True]) + np.mean(hits[False])) / 2, rel_tol=1e-12)
    assert math.isclose(metrics["last_accuracy"], np.mean(last), rel_tol=1e-12)


@pytest.mark.parametrize(("name", "constant"), [("every", -1.0), ("some", 1.0)])
def test_a_constant_has_the_accuracy_that_the_facts_say_and_a_balanced_accuracy_of_one_half(
    name: str, constant: float
) -> None:
    task = QUANTIFIERS[name]
    metrics = said(task, task.validation(streams(), 20_000), np.full((20_000, 12), constant))
    assert math.isclose(metrics["accuracy"], float(task.facts()["chance"]), abs_tol=0.003)
    assert metrics["balanced_accuracy"] == 0.5
    assert math.isclose(float(Every().facts()["chance"]), 0.975, abs_tol=1e-6)


def test_balanced_accuracy_is_over_the_answers_that_there_are() -> None:
    means = {"true": 0.0, "right_true": 0.0, "false": 4.0, "right_false": 3.0, "cross_entropy": 1.0, "last_accuracy": 1}
    assert Every().summary(means)["balanced_accuracy"] == 0.75


@pytest.mark.parametrize("name", TASKS)
def test_a_prediction_that_is_not_a_number_shows_in_every_metric_that_depends_on_it(name: str) -> None:
    task = TASKS[name]
    batch = task.validation(streams(), 5)
    predictions = np.zeros((5, 12))
    predictions[3, 7] = math.nan
    reference = {"zero_mse", "least_squares_mse"}
    metrics = said(task, batch, predictions)
    assert {metric for metric, value in metrics.items() if math.isfinite(value)} == metrics.keys() & reference


def test_the_mean_squared_error_is_equation_2() -> None:
    batch = AFFINE.shifted_sets(streams(), 50)["functions=2 inputs=4"]
    _, y = read({key: tensor[:1] for key, tensor in batch.items()})
    predictions = np.random.default_rng(3).normal(size=y.shape)
    metrics = said(AFFINE, batch, predictions)
    expected = np.mean(
        [sum((p[k] - t[k]) ** 2 for k in range(2, 12)) / 12 for p, t in zip(predictions, y, strict=True)]
    )
    assert math.isclose(metrics["mse"], expected, rel_tol=1e-12)
    assert math.isclose(metrics["zero_mse"], (y[:, 2:] ** 2).sum(1).mean() / 12, rel_tol=1e-12)
    assert math.isclose(metrics["highest_output"], predictions[:, 2:].max(1).mean(), rel_tol=1e-12)
    assert math.isclose(metrics["lowest_output"], predictions[:, 2:].min(1).mean(), rel_tol=1e-12)


def test_the_zero_predictor_has_the_error_that_follows_from_the_spreads() -> None:
    """Of y = a x + b with deviations f and i it is f^2 (i^2 + 1), at 10 of 12 points."""
    for condition, batch in AFFINE.shifted_sets(streams(), 20_000).items():
        if condition.startswith("functions"):
            functions, inputs = (float(part.partition("=")[2]) for part in condition.split())
            error = said(AFFINE, batch, np.zeros((20_000, 12)))["zero_mse"]
            assert math.isclose(error, functions**2 * (inputs**2 + 1) * 10 / 12, rel_tol=0.08), condition


def test_least_squares_is_that_of_numpy_on_the_points_before() -> None:
    numbers = np.random.default_rng(4)
    x, noise = numbers.normal(size=(20, 9)), numbers.normal(size=(20, 9))
    y = 2 * x - 1 + noise
    predictions = least_squares(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    for row in range(20):
        for k in range(2, 9):
            before = np.stack([x[row, :k], np.ones(k)], 1)
            (a, b), *_ = np.linalg.lstsq(before, y[row, :k], rcond=None)
            assert math.isclose(predictions[row, k], a * x[row, k] + b, rel_tol=1e-8, abs_tol=1e-8)
    same = torch.tensor([[1.0, 1.0, 3.0]]).double()
    assert least_squares(same, torch.tensor([[2.0, 4.0, 9.0]]).double())[0, 2] == 3


def test_least_squares_knows_an_affine_function_from_two_points() -> None:
    for condition, batch in AFFINE.shifted_sets(streams(), SAMPLES).items():
        metrics = said(AFFINE, batch, np.zeros((SAMPLES, 12)))
        assert metrics["least_squares_mse"] < 1e-4 * metrics["zero_mse"], condition


# --- training


def configured(task: str, number: int) -> Trial:
    """Return a tiny trial of the task whose prompts grow while it trains."""
    whole = config(steps=6, every=3, batch=4, validation_batch=6, averaging={"name": "none"}, dtype="float32")
    few = {"test_length": 12, "test_length_step": 12, "test_sigma": 1} if task in QUANTIFIERS else {}
    curriculum = {"curriculum_start": 3 + number % 2, "curriculum_every": 2, "input_scale": 3}
    whole["task"] = {"name": task, **SMALL[task], **few, **curriculum}
    whole["model"] = {"name": "regressor", "depth": 1, "heads": 2, "width": 32, "scorer": {"name": "ssa"}}
    return trial(number, whole)


def exact_reports(trials: list[Trial]) -> dict[tuple[int, int], Report]:
    pack = Pack(trials[0], width=len(trials))
    pack.fill(trials)
    return reports_of(pack)


@pytest.mark.parametrize("task", ["every", "affine"])
def test_packed_equals_alone_to_the_bit_in_float32(task: str) -> None:
    trials = [configured(task, number) for number in range(3)]
    alone = exact_reports(trials[1:2])
    together = exact_reports(trials)
    assert {key[1] for key in alone} == {3, 6}
    assert {key: together[key] for key in alone} == alone


def trials_of(path: str) -> list[Trial]:
    """All trials of a space, as its own sampler draws them."""
    space = spaces.load(path, families())
    space.check()
    return begin(space, []).ask(range(space.search.trials))


@pytest.mark.parametrize("task", TASKS)
def test_the_space_of_the_paper_trains_every_scorer_of_its_table_1_with_three_seeds(task: str) -> None:
    trials = trials_of(f"in_context/{task}")
    scorers = Counter(plugins.canonical_json(candidate.config["model"]["scorer"]) for candidate in trials)
    assert len(scorers) == 13
    assert set(scorers.values()) == {3}
    assert len({candidate.seed for candidate in trials}) == 3
    assert len({candidate.evaluation_seed for candidate in trials}) == 1
    for candidate in trials:
        recipe = Recipe.of(candidate.config)
        assert isinstance(recipe.model, Regressor)
        assert (recipe.model.depth, recipe.model.heads, recipe.model.width) == (12, 8, 256)
        assert (recipe.training.steps, recipe.training.batch) == (500_000, 64)
        assert recipe.optimizer.learning_rate == 1e-4
        assert isinstance(recipe.task, InContext)
        assert recipe.task.points == 40


def test_the_quantifiers_are_judged_on_the_paper_s_lengths_and_deviations() -> None:
    sets = Every().shifted_sets(streams(), 2)
    pairs = {f"length={length} sigma={sigma}" for length in range(10, 201, 10) for sigma in range(1, 31)}
    assert sets.keys() == pairs | {"deviant=10", "deviant=100"}
    assert sets["length=200 sigma=30"]["inputs"].shape == (2, 2, 399, 1)


def test_affine_functions_are_judged_on_all_pairs_of_the_paper_s_deviations() -> None:
    pairs = {f"functions={f} inputs={i}" for f in range(1, 11) for i in range(1, 11)}
    other = {*(f"deviant={10 * n}" for n in range(1, 11)), "slope=10 reach=3", "slope=1 reach=30"}
    assert Affine(deviants=10, deviant_step=10).shifted_sets(streams(), 2).keys() == pairs | other


@pytest.mark.parametrize("task", TASKS)
def test_the_quick_space_compares_softmax_and_ssa_over_eight_seeds(task: str) -> None:
    trials = trials_of(f"quick/{task}")
    assert Counter(candidate.config["model"]["scorer"]["name"] for candidate in trials) == {"softmax": 8, "ssa": 8}
    seeds = {candidate.seed for candidate in trials}
    assert len(seeds) == 8
    assert Counter(candidate.seed for candidate in trials) == dict.fromkeys(seeds, 2)
