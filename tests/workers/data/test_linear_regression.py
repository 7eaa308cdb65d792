"""Linear regression in context, the linearised attention of paper 004, and its closed forms against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spaces
from graft.plugins.families import families
from spaces import plugins
from spaces.errors import PluginError
from spaces.records import Metric, Trial
from tests.support.trials import FIRST_STEP, config, trial
from workers.data.tasks import Batch, Task
from workers.data.tasks.linear_regression import LinearRegression
from workers.engine.pack import Pack
from workers.networks.models import Model
from workers.networks.models.linearised_attention import LinearisedAttention
from workers.networks.scorers import Scorer
from workers.networks.scorers.linearised_softmax import LinearisedSoftmax
from workers.numerics import regression
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.temperature import Prompts, error_curve, minimize_error, sweep
from workers.training.recipe import Recipe

INTERLEAVED = "interleaved_regression"
TASK = LinearRegression(dimension=3, pairs=12, noise=0.7, input_condition=4.0, task_mean=0.5, task_scale=2.0)


def streams(lanes: int = 2, step: int = 0) -> Streams:
    return Streams.of(torch.arange(lanes) + 5, Purpose.VALIDATION_DATA, step)


def prompt(batch: Batch, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return inputs [l, d] and labels [l] of the first lane's pairs, the input that is asked, and its label."""
    rows = batch["inputs"][0, row].double().numpy()
    return rows[:-1, :-1], rows[:-1, -1], rows[-1, :-1], float(batch["targets"][0, row])


# -- the task --------------------------------------------------------------------------------------------------------


def test_a_position_is_a_pair_and_the_last_one_asks() -> None:
    batch = TASK.training(streams(), 50, FIRST_STEP)
    assert batch["inputs"].shape == (2, 50, 13, 4)
    assert batch["inputs"].dtype == torch.float32
    assert not batch["inputs"][:, :, -1, -1].any()
    assert batch["inputs"][:, :, :-1, -1].all()
    assert batch["targets"].shape == (2, 50)


def test_inputs_weights_and_noise_have_the_moments_that_the_fields_say() -> None:
    """With more pairs than coordinates, and little noise, least squares tells the weights of each prompt."""
    task = LinearRegression(
        dimension=3, pairs=40, noise=1e-8, input_mean=1.5, input_scale=2.0, input_condition=4.0, task_mean=-0.5,
        task_scale=3.0, task_condition=0.25,
    )  # fmt: skip
    rows = task.training(streams(1), 3000, FIRST_STEP)["inputs"][0, :, :-1].double()
    inputs, labels = rows[..., :-1], rows[..., -1:]
    weights = torch.linalg.lstsq(inputs, labels).solution[..., 0]
    ratio = np.array([0.5, 1.0, 2.0]) / (3.5 / 3)
    flat = inputs.flatten(0, 1)
    np.testing.assert_allclose(flat.mean(0), 1.5, atol=0.03)
    np.testing.assert_allclose(np.cov(flat.T), np.diag(2 * ratio), atol=0.05)
    np.testing.assert_allclose(weights.mean(0), -0.5, atol=0.15)
    np.testing.assert_allclose(np.cov(weights.T), np.diag(3 * ratio[::-1]), atol=0.3)


def test_the_noise_is_in_the_labels_and_in_the_one_that_is_asked() -> None:
    quiet, loud = (LinearRegression(dimension=2, pairs=5, noise=noise) for noise in (0.0, 4.0))
    batch, other = (task.training(streams(1), 4000, FIRST_STEP) for task in (quiet, loud))
    assert torch.equal(batch["inputs"][..., :-1], other["inputs"][..., :-1])
    for difference in (other["inputs"] - batch["inputs"])[0, :, :-1, -1], (other["targets"] - batch["targets"])[0]:
        assert float(difference.double().std()) == pytest.approx(2, rel=0.04)
        assert float(difference.double().mean()) == pytest.approx(0, abs=0.1)


def test_a_seed_draws_its_prompts_whatever_the_lane_and_each_step_draws_others() -> None:
    two, alone = TASK.validation(streams(2), 20), TASK.validation(streams(1), 20)
    assert two.keys() == alone.keys()
    assert all(torch.equal(two[name][:1], alone[name]) for name in alone)
    assert not torch.equal(two["inputs"][0], two["inputs"][1])
    first, next_one = (TASK.training(streams(1, step), 20, FIRST_STEP)["targets"] for step in range(2))
    assert not (first == next_one).any()


def test_the_references_are_ridge_and_least_squares_of_each_prompt() -> None:
    batch = TASK.validation(streams(), 100)
    prior = np.eye(3) / 2
    for row in range(100):
        inputs, labels, asked, label = prompt(batch, row)
        bayes = np.linalg.solve(inputs.T @ inputs / 0.7 + prior, inputs.T @ labels / 0.7 + prior @ np.full(3, 0.5))
        least = np.linalg.lstsq(inputs, labels)[0]
        for name, weights in {"bayes": bayes, "least_squares": least, "zero": np.zeros(3)}.items():
            expected = (asked @ weights - label) ** 2
            assert float(batch[f"{name}_error"][0, row]) == pytest.approx(expected, rel=1e-3, abs=1e-5), name


def test_least_squares_without_enough_pairs_is_the_solution_of_least_norm() -> None:
    task = LinearRegression(dimension=6, pairs=4, noise=0.0)
    batch = task.validation(streams(1), 50)
    for row in range(50):
        inputs, labels, asked, label = prompt(batch, row)
        expected = (asked @ np.linalg.lstsq(inputs, labels)[0] - label) ** 2
        assert float(batch["least_squares_error"][0, row]) == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert float(batch["bayes_error"][0, row]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("pairs", "noise"), [(2, 0.0), (5, 0.0), (20, 0.0), (20, 3.0)])
def test_mean_errors_are_those_of_theory(pairs: int, noise: float) -> None:
    """Least squares: d - l without noise, 0 from there (Garg et al.), and s (1 + d / (l - d - 1)) with it."""
    batch = LinearRegression(dimension=8, pairs=pairs, noise=noise).validation(streams(1), 20_000)
    expected = noise * (1 + 8 / (pairs - 9)) + max(8 - pairs, 0)
    assert float(batch["least_squares_error"].mean()) == pytest.approx(expected, rel=0.06, abs=1e-6)
    assert float(batch["zero_error"].mean()) == pytest.approx(8 + noise, rel=0.05)
    assert float(batch["bayes_error"].mean()) <= float(batch["least_squares_error"].mean()) + 1e-6


def test_nothing_errs_less_than_bayes_under_any_shift() -> None:
    task = LinearRegression(
        dimension=4, pairs=9, shifts="input_scale=3; input_condition=0.1 noise=2; task_mean=2; input_mean=1 pairs=20"
    )
    shifted = task.shifted_sets(streams(1), 4000)
    assert list(shifted) == ["input_scale=3", "input_condition=0.1 noise=2", "task_mean=2", "input_mean=1 pairs=20"]
    assert [batch["inputs"].shape[2] for batch in shifted.values()] == [10, 10, 10, 21]
    assert task.longest == 21
    for batch in shifted.values():
        bayes = batch["bayes_error"].mean()
        others = ("least_squares_error", "zero_error", "closed_form_error", "closed_form_optimum")
        assert all(bayes < batch[name].mean() for name in others)
        assert float(batch["closed_form_optimum"][0, 0]) <= float(batch["closed_form_error"][0, 0])


def test_a_shift_keeps_what_it_does_not_name_and_is_what_a_task_of_its_own_draws() -> None:
    shift = plugins.build(Task, {**plugins.config_of(TASK), "shifts": " noise=2  input_mean=1 ;"})
    task = plugins.build(Task, {**plugins.config_of(TASK), "noise": 2.0, "input_mean": 1.0})
    sets, expected = shift.shifted_sets(streams(), 10), task.validation(streams(), 10)
    assert list(sets) == ["noise=2 input_mean=1"]
    for name in ("inputs", "targets", "bayes_error", "least_squares_error", "zero_error"):
        assert torch.equal(sets["noise=2 input_mean=1"][name], expected[name])


def test_lanes_have_distributions_of_their_own() -> None:
    knobs: dict[str, Any] = dict(plugins.knobs(TASK))
    lanes = {path: torch.tensor([value, 2 * value], dtype=torch.float64) for path, value in knobs.items()}
    together = plugins.bind(plugins.replace(TASK, {"shifts": "noise=3"}), lanes).shifted_sets(streams(), 10)["noise=3"]
    for lane, factor in enumerate((1, 2)):
        values = {path: factor * value for path, value in knobs.items()}
        alone = plugins.replace(TASK, {**values, "shifts": "noise=3"}).shifted_sets(streams(), 10)["noise=3"]
        assert all(torch.equal(together[name][lane], alone[name][lane]) for name in alone)


@pytest.mark.parametrize(
    "task", [TASK, LinearRegression(dimension=1, pairs=2), LinearRegression(dimension=20, pairs=40)]
)
def test_prompts_of_one_pass_are_those_of_whole_passes(task: LinearRegression, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, and by torch's operations, which sum a label in another order; each lane as alone, to the bit."""
    knobs: dict[str, Any] = dict(plugins.knobs(task))
    factors = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    lanes = plugins.bind(task, {path: (value + 0.25) * factors for path, value in knobs.items()})
    batch = lanes.training(streams(3), 19, FIRST_STEP)
    for lane in range(3):
        alone = plugins.bind(task, {path: (value + 0.25) * factors[lane : lane + 1] for path, value in knobs.items()})
        drawn = alone.training(Streams(state=streams(3).state[lane : lane + 1]), 19, FIRST_STEP)
        assert all(torch.equal(drawn[name][0], batch[name][lane]) for name in batch)
    monkeypatch.setattr(regression, "library", lambda _: None)
    expected = lanes.training(streams(3), 19, FIRST_STEP)
    assert batch.keys() == expected.keys()
    for name, tensor in expected.items():
        assert batch[name].dtype == tensor.dtype
        torch.testing.assert_close(batch[name], tensor, rtol=2e-7, atol=1e-6)
    torch.testing.assert_close(batch["targets"], expected["targets"], rtol=1e-12, atol=1e-12)


def test_loss_and_error_look_at_the_last_position_alone() -> None:
    batch = {name: tensor[0] for name, tensor in TASK.validation(streams(), 30).items()}
    outputs = torch.randn(30, 13, 1, generator=torch.Generator().manual_seed(0))
    expected = (outputs[:, -1, 0].double() - batch["targets"]).square()
    metrics = TASK.metrics(outputs, batch)
    torch.testing.assert_close(metrics["error"], expected)
    assert float(TASK.loss(outputs, batch)) == pytest.approx(float(expected.mean()), rel=1e-5)
    assert metrics.keys() - {"error"} == batch.keys() - {"inputs", "targets"}


@pytest.mark.parametrize(
    ("shifts", "message"),
    [
        ("noise", r"task\.shifts: noise: '' must be a number >= 0"),
        ("noise=-1", r"task\.shifts: noise: -1\.0 must be a number >= 0"),
        ("noise=nan", r"task\.shifts: noise: nan must be a number >= 0"),
        ("pairs=2.5", r"task\.shifts: pairs: 2\.5 must be an integer >= 2"),
        ("noise=2; scale=3", r"task\.shifts: 'scale=3' must be NAME=NUMBER; NAME is one of pairs, noise, input_mean, "),
        ("dimension=3", r"task\.shifts: 'dimension=3' must be NAME=NUMBER"),
    ],
)
def test_a_shift_that_cannot_be_is_refused_in_one_line(shifts: str, message: str) -> None:
    with pytest.raises(PluginError, match=f"^{message}"):
        plugins.build(Task, {"name": "linear_regression", "shifts": shifts})


# -- inputs and labels in turn ---------------------------------------------------------------------------------------


def test_interleaved_prompts_are_those_of_pairs_with_a_position_each() -> None:
    fields = {**plugins.config_of(TASK), "shifts": "noise=3 pairs=5"}
    pairs, turns = (plugins.build(Task, {**fields, "name": name}) for name in ("linear_regression", INTERLEAVED))
    assert (turns.context, turns.longest) == (25, 25)
    for batch, other in (
        (pairs.training(streams(), 6, FIRST_STEP), turns.training(streams(), 6, FIRST_STEP)),
        (pairs.shifted_sets(streams(), 6)["noise=3 pairs=5"], turns.shifted_sets(streams(), 6)["noise=3 pairs=5"]),
    ):
        rows, inputs = batch["inputs"], other["inputs"]
        count = rows.shape[2]
        assert inputs.shape == (2, 6, 2 * count - 1, 3)
        assert other["targets"].shape == (2, 6, count)
        for pair in range(count):
            assert torch.equal(inputs[:, :, 2 * pair], rows[:, :, pair, :3])
            if pair < count - 1:
                assert torch.equal(inputs[:, :, 2 * pair + 1, 0], rows[:, :, pair, 3])
                assert not inputs[:, :, 2 * pair + 1, 1:].any()
                assert torch.equal(other["targets"][:, :, pair].float(), rows[:, :, pair, 3])
        assert torch.equal(other["targets"][..., -1], batch["targets"])
        assert all(torch.equal(batch[name], other[name]) for name in batch if name not in ("inputs", "targets"))


def test_every_prefix_is_trained_and_the_last_one_evaluated() -> None:
    task = plugins.build(Task, {**plugins.config_of(TASK), "name": INTERLEAVED})
    stacked = task.validation(streams(), 30)
    batch = {name: tensor[0] for name, tensor in stacked.items()}
    outputs = torch.randn(30, 25, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    errors = torch.stack([(outputs[:, 2 * n, 0] - batch["targets"][:, n]) ** 2 for n in range(13)])
    assert float(task.loss(outputs, batch)) == pytest.approx(float(errors.mean()))
    torch.testing.assert_close(task.metrics(outputs, batch)["error"], errors[-1])
    targets, weights = task.position_targets(stacked, torch.float64)
    summed = (weights[0] * (outputs[..., 0] - targets[0]) ** 2).sum()
    assert float(summed) == pytest.approx(float(errors.mean()))
    asked = task.evaluated_positions(stacked)
    assert asked is not None
    assert asked[0].sum(-1).unique().tolist() == [1]
    assert asked[..., -1].all()


def test_a_lane_of_interleaved_prompts_has_a_distribution_of_its_own() -> None:
    task = plugins.build(Task, {**plugins.config_of(TASK), "name": INTERLEAVED, "shifts": "noise=3"})
    knobs: dict[str, Any] = dict(plugins.knobs(task))
    together = plugins.bind(
        task, {path: torch.tensor([value, 2 * value], dtype=torch.float64) for path, value in knobs.items()}
    )
    for lane, factor in enumerate((1, 2)):
        alone = plugins.replace(task, {path: factor * value for path, value in knobs.items()})
        actual, expected = (lanes.shifted_sets(streams(), 10)["noise=3"] for lanes in (together, alone))
        assert all(torch.equal(actual[name][lane], expected[name][lane]) for name in actual)


# -- the model -------------------------------------------------------------------------------------------------------


def drawn(seed: int = 0, inputs: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    task = LinearRegression(dimension=inputs)
    shapes = {name: parameter.shape for name, parameter in LinearisedAttention().parameters(task).items()}
    return {name: torch.randn(*s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}


def test_outputs_are_attention_with_linearised_weights_over_the_other_positions() -> None:
    """The scorer of the same name gives the weights, two positions at a time."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(5, 7, 4, generator=generator, dtype=torch.float64) + 3
    lengths, parameters = torch.tensor([7, 6, 4, 3, 2]), drawn()
    matrix = torch.cat([parameters["score_of_inputs"], parameters["score_of_label"]])
    value = torch.cat([parameters["value_of_inputs"], parameters["value_of_label"]])
    outputs = LinearisedAttention(temperature=1.7).outputs(parameters, {"inputs": rows, "lengths": lengths}, {})
    for prompt, length in zip(range(5), lengths.tolist(), strict=True):
        positions = rows[prompt, :length]
        others = ~torch.eye(length, dtype=torch.bool)
        weights = LinearisedSoftmax(temperature=1.7).weigh((positions @ matrix @ positions[:, :-1].mT).mT, others, {})
        torch.testing.assert_close(outputs[prompt, :length], weights @ (positions @ value), rtol=1e-9, atol=1e-9)


def test_without_centring_it_is_linear_attention_over_the_other_positions() -> None:
    """Mean of z u: paper 004, equation 6, pair by pair."""
    rows = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1)).double() + 1
    parameters = drawn()
    matrix = torch.cat([parameters["score_of_inputs"], parameters["score_of_label"]])
    value = torch.cat([parameters["value_of_inputs"], parameters["value_of_label"]])
    outputs = LinearisedAttention(centred=False, temperature=2.0).outputs(parameters, {"inputs": rows}, {})
    for prompt in range(3):
        for query in range(6):
            others = [rows[prompt, key] for key in range(6) if key != query]
            scores = [float(key @ matrix @ rows[prompt, query, :-1]) for key in others]
            expected = sum(score * float(key @ value) for score, key in zip(scores, others, strict=True)) / 5 / 2.0
            assert float(outputs[prompt, query, 0]) == pytest.approx(expected)


def test_the_weights_of_lemma_4_1_mimic_the_bayes_predictor() -> None:
    """On the distribution of training with many pairs its error is that of Bayes, and a wider input needs a warmer one.

    With inputs three times as wide the covariance triples and so does the best temperature, which undoes it.
    """
    fields: dict[str, Any] = {"dimension": 3, "pairs": 2000, "noise": 0.5, "lemma": True}
    sets = LinearRegression(**fields, shifts="input_scale=3; pairs=100").shifted_sets(streams(1), 60)
    means = {name: {key: float(batch[key].mean()) for key in batch if key.endswith(("error", "temperature"))}
             for name, batch in sets.items()}  # fmt: skip
    wide, few = means["input_scale=3"], means["pairs=100"]
    assert wide["lemma_temperature"] == pytest.approx(3, rel=0.01)
    assert wide["lemma_optimum_error"] == pytest.approx(wide["bayes_error"], rel=0.1)
    assert wide["lemma_error"] > 5 * wide["bayes_error"]
    assert 1 < few["lemma_temperature"] < 1.1
    assert few["lemma_optimum_error"] == pytest.approx(few["lemma_error"], rel=0.05)


def test_a_prompt_of_one_position_is_finite() -> None:
    rows = torch.ones(2, 3, 4, dtype=torch.float64)
    for estimated in (False, True):
        model = LinearisedAttention(estimated=estimated)
        assert model.outputs(drawn(), {"inputs": rows[:, :1]}, {}).isfinite().all()
        assert model.outputs(drawn(), {"inputs": rows, "lengths": torch.tensor([1, 2])}, {}).isfinite().all()


def test_a_task_of_one_feature_is_refused_in_one_line() -> None:
    task = plugins.build(Task, {"name": "affine"})
    with pytest.raises(
        PluginError, match=r"^model\.name: 'linearised_attention' reads inputs and a label, and 'affine'"
    ):
        LinearisedAttention().check(task)


def test_its_evaluations_are_the_temperatures_asked_for_and_the_estimated_one() -> None:
    model = LinearisedAttention(temperature=1.5, temperatures="2 0.5")
    evaluations = model.evaluations()
    assert list(evaluations) == ["", "temperature=2", "temperature=0.5", "temperature=estimated"]
    batch = {"inputs": torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0)).double()}
    for label, temperature in [("", 1.5), ("temperature=2", 2.0), ("temperature=0.5", 0.5)]:
        expected = LinearisedAttention(temperature=temperature).outputs(drawn(), batch, {})
        assert torch.equal(evaluations[label].outputs(drawn(), batch, {}), expected)


def test_the_estimated_temperature_is_the_ratio_of_the_moments() -> None:
    batch = {"inputs": torch.randn(6, 9, 4, generator=torch.Generator().manual_seed(2)).double() + 1}
    parameters = drawn()
    parameters["score_of_inputs"] = torch.eye(3).double() + 0.2 * parameters["score_of_inputs"]
    outputs = LinearisedAttention(estimated=True).outputs(parameters, batch, {})
    for row in range(6):
        inputs = batch["inputs"][row, :, :-1].numpy()
        inputs = inputs - inputs.mean(0)
        scores = float(parameters["value_of_label"]) * inputs @ parameters["score_of_inputs"].numpy() @ inputs.T
        second = np.mean([scores[i, j] ** 2 for i in range(9) for j in range(9) if i != j])
        ratio = float(second / np.mean(np.diag(scores)))
        example = {"inputs": batch["inputs"][row : row + 1]}
        expected = LinearisedAttention(temperature=ratio if ratio > 0 else 1.0).outputs(parameters, example, {})
        torch.testing.assert_close(outputs[row], expected[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("path", ["model", "scorer"])
def test_temperatures_that_cannot_be_are_refused_in_one_line(path: str) -> None:
    family, name = (Model, "linearised_attention") if path == "model" else (Scorer, "softmax_evaluation")
    with pytest.raises(PluginError, match=rf"^{path}\.temperatures: '0' must be a number in "):
        plugins.build(family, {"name": name, "temperatures": "1 0"})
    with pytest.raises(PluginError, match=r"'2,' must be a number in "):
        sweep(f"{path}.temperatures", "2, 4")


def test_softmax_is_validated_at_every_temperature_asked_for() -> None:
    scorer = plugins.build(Scorer, {"name": "softmax_evaluation", "temperature": 3.0, "temperatures": "0.5 2"})
    query, key = torch.randn(2, 1, 2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everything = torch.ones(5, 5, dtype=torch.bool)
    scorers = scorer.evaluations()
    expected = {"": 3.0, "scorer=trained": 1.0, "temperature=0.5": 0.5, "temperature=2": 2.0}
    assert list(scorers) == list(expected)
    for label, temperature in expected.items():
        weights = torch.softmax(query @ key.mT / math.sqrt(3) / temperature, -1)
        torch.testing.assert_close(scorers[label].weights(query, key, everything, {}), weights, rtol=1e-10, atol=1e-12)


# -- closed forms ----------------------------------------------------------------------------------------------------


def random_covariance(generator: np.random.Generator, size: int) -> np.ndarray:
    factor = generator.normal(size=(size, size))
    return factor @ factor.T / size + 0.2 * np.eye(size)


def prompts(seed: int, *, pairs: int = 24, size: int = 8, noise: float = 0.5, means: float = 0.0) -> Prompts:
    generator = np.random.default_rng(seed)
    covariances = [torch.from_numpy(random_covariance(generator, size)) for _ in range(2)]
    input_mean, task_mean = (torch.from_numpy(means * generator.normal(size=size)) for _ in range(2))
    return Prompts(
        pairs=pairs,
        noise=torch.tensor(noise).double(),
        input_mean=input_mean,
        input_covariance=covariances[0],
        task_mean=task_mean,
        task_covariance=covariances[1],
    )


def isotropic(*, scale: float = 1.0, pairs: int = 24, noise: float = 0.5, size: int = 8) -> Prompts:
    zero, eye = torch.zeros(size).double(), torch.eye(size).double()
    return Prompts(
        pairs=pairs,
        noise=torch.tensor(noise).double(),
        input_mean=zero,
        input_covariance=scale * eye,
        task_mean=zero,
        task_covariance=eye,
    )


def imitate_posterior_mean(prompts: Prompts) -> tuple[Tensor, Tensor]:
    """Matrix and value that imitate the posterior mean of w (lemma 4.1): M = (C + (noise / l) C_w^-1)^-1.

    C and C_w are the covariances of inputs and weights; v carries the weights' mean. As in the paper v is shrunk and M
    grown by as much, so that the plain mean of the values is lost in the prediction.
    """
    precision = torch.linalg.inv(prompts.task_covariance)
    share = (prompts.noise / prompts.pairs)[..., None, None] * precision
    matrix = torch.linalg.inv(prompts.input_covariance + share)
    pull = torch.linalg.solve(prompts.input_covariance, (share @ prompts.task_mean[..., None])[..., 0])
    return matrix * 1e6, torch.cat([pull, torch.ones_like(pull[..., :1])], -1) / 1e6


def simulated(model: tuple[Tensor, Tensor], given: Prompts, temperature: float, count: int) -> tuple[float, float]:
    """Mean squared error over drawn prompts and its standard error; the prediction as numpy's means and covariances."""
    generator = np.random.default_rng(0)
    matrix, value = (part.numpy() for part in model)
    size, errors = len(given.input_mean), []
    for _ in range(count // 1000):
        mean, covariance = given.input_mean.numpy(), given.input_covariance.numpy()
        x = generator.multivariate_normal(mean, covariance, (1000, given.pairs + 1))
        w = generator.multivariate_normal(given.task_mean.numpy(), given.task_covariance.numpy(), 1000)
        y = np.einsum("nld,nd->nl", x, w) + math.sqrt(float(given.noise)) * generator.normal(size=x.shape[:2])
        u = x[:, :-1] @ value[:size] + y[:, :-1] * value[size]
        z = np.einsum("nld,de,ne->nl", x[:, :-1], matrix, x[:, -1])
        predicted = u.mean(1) + ((z * u).mean(1) - z.mean(1) * u.mean(1)) / temperature
        errors.append((predicted - y[:, -1]) ** 2)
    return float(np.mean(errors)), float(np.std(errors) / math.sqrt(count))


@pytest.mark.parametrize("means", [0.0, 0.6])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_the_error_curve_is_that_of_simulated_prompts(means: float, temperature: float) -> None:
    """Another covariance, noise and length than those that the matrix is for; values with all their entries."""
    given = prompts(1, noise=2.0, means=means)
    matrix, value = imitate_posterior_mean(prompts(2, means=means))
    weight = 0.7 / float(value[-1])
    model = matrix / weight, value * weight
    error = float(error_curve(*model, given).at(temperature))
    expected, deviation = simulated(model, given, temperature, 40_000)
    assert deviation < 0.05 * expected
    assert error == pytest.approx(expected, abs=4 * deviation)


def test_the_optimum_is_the_least_of_a_fine_grid_and_the_curve_a_parabola_in_the_inverse() -> None:
    curve = error_curve(*imitate_posterior_mean(prompts(2)), prompts(1, noise=2.0))
    grid = torch.linspace(0.2, 40, 20_000, dtype=torch.float64)
    errors = curve.at(grid)
    assert float(grid[errors.argmin()]) == pytest.approx(float(curve.optimum), abs=0.002)
    assert float(errors.min()) == pytest.approx(float(curve.at(curve.optimum)), rel=1e-6)
    assert float(curve.at(curve.optimum)) == pytest.approx(
        float(curve.constant - curve.cross**2 / curve.second), rel=1e-9
    )


def test_for_many_pairs_no_shift_has_optimum_one_and_the_error_of_the_noise() -> None:
    given = prompts(3, pairs=10**9)
    for model in (imitate_posterior_mean(given), minimize_error(given)):
        curve = error_curve(*model, given)
        assert float(curve.optimum) == pytest.approx(1, abs=1e-6)
        assert float(curve.at(1.0)) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_inputs_scaled_by_c_are_undone_by_the_temperature_c(scale: float) -> None:
    model, many = imitate_posterior_mean(isotropic(pairs=10**9)), isotropic(scale=scale, pairs=10**9)
    curve = error_curve(*model, many)
    assert float(curve.optimum) == pytest.approx(scale, rel=1e-6)
    assert float(curve.at(curve.optimum)) == pytest.approx(0.5, abs=1e-6)
    assert float(curve.at(1.0)) == pytest.approx(0.5 + 8 * scale * (1 - scale) ** 2, rel=1e-6)


def test_more_noise_wants_a_higher_temperature_the_more_so_the_fewer_the_pairs() -> None:
    """Figures 2b and 2c of the paper."""
    rises: list[float] = []
    for pairs in (20, 80, 320):
        optima = [
            float(error_curve(*minimize_error(isotropic(pairs=pairs)), isotropic(pairs=pairs, noise=noise)).optimum)
            for noise in (0.5, 2.0, 8.0)
        ]
        assert optima == sorted(optima)
        assert optima[0] == pytest.approx(1)
        rises.append(optima[-1] - 1)
    assert rises == sorted(rises, reverse=True)


def test_the_fitted_matrix_errs_least_on_its_own_prompts() -> None:
    given = prompts(4)
    matrix, value = minimize_error(given)
    curve = error_curve(matrix, value, given)
    assert float(curve.optimum) == pytest.approx(1)
    assert curve.at(1.0) < error_curve(*imitate_posterior_mean(given), given).at(1.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        other = matrix * (1 + 0.05 * torch.randn(8, 8, generator=generator).double())
        assert error_curve(other, value, given).at(1.0) > curve.at(1.0)


def test_where_attention_says_the_opposite_no_temperature_is_high_enough() -> None:
    matrix, value = minimize_error(isotropic())
    assert float(error_curve(-matrix, value, isotropic()).optimum) == math.inf


def test_closed_forms_of_the_task_are_those_of_its_distributions() -> None:
    task = LinearRegression(dimension=8, pairs=24, shifts="input_scale=3 pairs=50")
    batch = task.shifted_sets(streams(1), 3)["input_scale=3 pairs=50"]
    curve = error_curve(*minimize_error(isotropic()), isotropic(scale=3.0, pairs=50))
    assert batch["closed_form_temperature"][0].tolist() == pytest.approx([float(curve.optimum)] * 3)
    assert batch["closed_form_error"][0].tolist() == pytest.approx([float(curve.at(1.0))] * 3)
    assert batch["closed_form_optimum"][0].tolist() == pytest.approx([float(curve.at(curve.optimum))] * 3)


# -- trials ----------------------------------------------------------------------------------------------------------


def recipe(model: dict[str, Any], *, steps: int = 4, batch: int = 8, pairs: int = 9) -> dict[str, Any]:
    settings = config(steps=steps, every=steps, batch=batch, validation_batch=1024, dtype="float32")
    task = {"name": "linear_regression", "dimension": 3, "pairs": pairs, "shifts": "input_scale=3"}
    schedule = {"name": "cosine", "warmup": 0, "end_multiplier": 0.0}
    optimizer = {"name": "adam", "learning_rate": 0.05, "schedule": schedule}
    return {**settings, "task": task, "model": model, "optimizer": optimizer, "averaging": {"name": "none"}}


def packed(trials: list[Trial]) -> Pack:
    pack = Pack(trials[0], width=len(trials))
    pack.fill(trials)
    return pack


def errors_of(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.condition: metric.value for metric in metrics if metric.name == "error"}


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    [
        {"name": "linearised_attention", "temperatures": "2 4"},
        {
            "name": "regressor",
            "width": 4,
            "depth": 1,
            "mlp_multiple": 1,
            "scorer": {"name": "softmax_evaluation", "temperature": 2.0},
        },
    ],
    ids=lambda model: model["name"],
)
def test_a_pack_trains_a_trial_to_the_same_bits_as_it_trains_alone(model: dict[str, Any]) -> None:
    trials = [trial(number, recipe(model)) for number in range(3)]
    together = {report.number: report.metrics for report in packed(trials).train(10)}
    (alone,) = packed([trials[2]]).train(10)
    assert alone.state == "finished"
    assert together[2] == alone.metrics
    errors = errors_of(alone.metrics)
    assert len(set(errors.values())) == len(errors) >= 4, "evaluations that differ by a number alone are told apart"


@pytest.mark.long
def test_trained_attention_comes_to_the_closed_form_and_a_temperature_restores_it() -> None:
    """With three seeds; the closed form at the trained matrices, and at those of least error."""
    trials = [
        trial(number, recipe({"name": "linearised_attention", "temperatures": "3"}, steps=600, batch=32, pairs=60))
        for number in range(3)
    ]
    pack = packed(trials)
    pack.train(599)
    task = LinearRegression(dimension=3, pairs=60, input_scale=3.0)
    ideal = error_curve(*minimize_error(plugins.replace(task, {"input_scale": 1.0}).prompts()), task.prompts())
    for number, metrics in pack.evaluate(range(3)).items():
        named, errors = pack.parameters(number), errors_of(metrics)
        value = torch.cat([named["value_of_inputs"], named["value_of_label"]])[:, 0]
        curve = error_curve(named["score_of_inputs"].double(), value.double(), task.prompts())
        assert errors["input_scale=3"] == pytest.approx(float(curve.at(1.0)), rel=0.2)
        assert errors["input_scale=3 temperature=3"] == pytest.approx(float(curve.at(3.0)), rel=0.2)
        assert errors["input_scale=3"] > 10 * errors["input_scale=3 temperature=3"]
        assert float(curve.optimum) == pytest.approx(float(ideal.optimum), rel=0.1)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("in_context/linear_regression", {"", "temperature=3", "temperature=estimated"}),
        ("in_context/linear_regression_transformer", {"", "temperature=3", "scorer=trained"}),
        ("quick/linear_regression", {"", "temperature=3", "temperature=estimated"}),
    ],
)
def test_the_packaged_spaces_differ_by_seed_alone(name: str, labels: set[str]) -> None:
    space = spaces.load(name, families())
    space.check()
    trials = [space.sample(number, lambda draw: 0.5) for number in range(space.search.trials)]
    assert len({candidate.seed for candidate in trials}) == len(trials) >= 4
    assert all(
        (candidate.config, candidate.structure) == (trials[0].config, trials[0].structure) for candidate in trials
    )
    assert labels < Recipe.of(trials[0].config).model.evaluations().keys()


@pytest.mark.parametrize("shift", [{}, {"input_mean": 1.0, "task_mean": 0.5, "input_condition": 10.0, "noise": 2.0}])
def test_chance_is_the_mean_error_of_predicting_zero(shift: dict[str, float]) -> None:
    task = LinearRegression(dimension=4, pairs=5, **shift)
    errors = task.validation(Streams.of(torch.tensor([1]), Purpose.VALIDATION_DATA, 0), 20_000)["zero_error"][0]
    standard_error = float(errors.std()) / len(errors) ** 0.5
    assert float(errors.mean()) == pytest.approx(task.facts()["chance"], abs=4 * standard_error)
