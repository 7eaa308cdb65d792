"""Table 1 of paper 003, row by row, against distributions written out here independently of the language."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

import spaces
from graft.plugins.families import families
from spaces.records import Trial

pytestmark = pytest.mark.long

N = 20_000
LEAST_P = 1e-3  # 19 rows, a fixed seed: a right sampler passes once and for ever

Cdf = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def space() -> spaces.Space:
    return spaces.load("set_complement", families())


@pytest.fixture(scope="module")
def trials(space: spaces.Space) -> list[Trial]:
    """Every trial with group draws of its own, so that the rows of a group have as many draws as the others."""
    coordinates = np.random.default_rng(20260)
    return [space.sample(number, lambda _: coordinates.random()) for number in range(N)]


def column(trials: Sequence[Trial], path: str) -> np.ndarray:
    section, *rest = path.split(".")
    values = [trial.config[section] for trial in trials]
    for key in rest:
        values = [value[key] for value in values]
    return np.array(values, dtype=float)


def power_of_ten(low: float, high: float) -> Cdf:
    return stats.loguniform(10.0**low, 10.0**high).cdf


CONTINUOUS: dict[str, Cdf] = {
    "model.norm_epsilon": power_of_ten(-10, -4),
    "optimizer.weight_decay": power_of_ten(-6, 0),
    "optimizer.epsilon": power_of_ten(-12, -8),
    "optimizer.clip_norm": power_of_ten(-2, 2),
    "optimizer.learning_rate": power_of_ten(-5, -1),
    "optimizer.schedule.end_multiplier": power_of_ten(-4, 0),
    "averaging.eta": stats.uniform(0, 1).cdf,
    "averaging.rho": power_of_ten(0, 10),
    "averaging.kappa": stats.uniform(0, 1).cdf,
}


@pytest.mark.parametrize("path", CONTINUOUS)
def test_a_continuous_row(trials: list[Trial], path: str) -> None:
    assert stats.kstest(column(trials, path), CONTINUOUS[path]).pvalue > LEAST_P


@pytest.mark.parametrize(("path", "low", "high"), [("optimizer.beta1", -2, 0), ("optimizer.beta2", -8, -1)])
def test_a_moment_decay_is_one_minus_a_power_of_ten(trials: list[Trial], path: str, low: float, high: float) -> None:
    drawn = column(trials, path)
    # For U = log10(1 - beta) uniform on [low, high]: P(beta <= b) = P(U >= log10(1 - b)).
    assert stats.kstest(drawn, lambda b: (high - np.log10(1 - b)) / (high - low)).pvalue > LEAST_P
    assert ((drawn >= 0) & (drawn < 1)).all()


@pytest.mark.parametrize("path", ["model.embedding_dropout", "model.residual_dropout"])
def test_a_dropout_rate_is_zero_half_the_time_and_else_uniform(trials: list[Trial], path: str) -> None:
    drawn = column(trials, path)
    zeros = int((drawn == 0).sum())
    assert stats.binomtest(zeros, N, 0.5).pvalue > LEAST_P
    assert stats.kstest(drawn[drawn > 0], stats.uniform(0, 0.5).cdf).pvalue > LEAST_P


def fits(drawn: np.ndarray, share: dict[int, float]) -> bool:
    """Pearson's chi-square test, rare values put together; nothing may be drawn that has no share."""
    values = sorted(share)
    counts = np.array([(drawn == value).sum() for value in values])
    expected = np.array([share[value] for value in values]) * len(drawn)
    assert counts.sum() == len(drawn)
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0
    return bool(stats.chisquare(counts[kept], expected[kept] * counts.sum() / expected.sum()).pvalue > LEAST_P)


def floored_power_of_two() -> dict[int, float]:
    """P(floor(2^U[0, 4]) = k)."""
    return {k: math.log2((k + 1) / k) / 4 for k in range(1, 16)}


def test_the_length_is_one_more_than_a_floored_power_of_two(trials: list[Trial]) -> None:
    share = {1 + k: p for k, p in floored_power_of_two().items()}
    assert fits(column(trials, "task.length"), share)
    assert (min(share), max(share)) == (2, 16)  # the table says 17, which has probability 0


def test_the_vocabulary_exceeds_the_length_by_a_floored_power_of_two(trials: list[Trial]) -> None:
    assert fits(column(trials, "task.vocabulary") - column(trials, "task.length"), floored_power_of_two())
    joint = dict.fromkeys(range(3, 32), 0.0)
    for a, p in floored_power_of_two().items():
        for b, q in floored_power_of_two().items():
            joint[1 + a + b] += p * q
    assert fits(column(trials, "task.vocabulary"), joint)


def randomised(drawn: np.ndarray, below: np.ndarray, upto: np.ndarray) -> float:
    """Return the p of the randomised probability integral transform: it is uniform.

    `below` is P(X < drawn), `upto` is P(X <= drawn).
    """
    inside = np.random.default_rng(7).random(len(drawn))
    assert (upto > below).all()
    return float(stats.kstest(below + (upto - below) * inside, stats.uniform(0, 1).cdf).pvalue)


def floored_uniform(drawn: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Return the p of `drawn` = floor(U[low, high]) with bounds that differ from trial to trial."""
    wide = high > low
    assert (drawn[~wide] == low[~wide]).all()
    drawn, low, high = drawn[wide], low[wide], high[wide]
    below, upto = (np.clip((edge - low) / (high - low), 0, 1) for edge in (drawn, drawn + 1))
    return randomised(drawn, below, upto)


def test_the_width_is_a_floored_multiple_of_v_minus_1(trials: list[Trial]) -> None:
    least = column(trials, "task.vocabulary") - 1
    assert floored_uniform(column(trials, "model.width"), least, 4 * least) > LEAST_P


def test_the_key_width_is_floored_uniform_up_to_the_width(trials: list[Trial]) -> None:
    width = column(trials, "model.width")
    assert floored_uniform(column(trials, "model.key_width"), np.ones(N), width) > LEAST_P


def test_the_value_width_is_floored_uniform_from_v_minus_1_to_the_width(trials: list[Trial]) -> None:
    least, width = column(trials, "task.vocabulary") - 1, column(trials, "model.width")
    assert floored_uniform(column(trials, "model.value_width"), least, width) > LEAST_P


def test_the_warmup_is_a_floored_power_of_ten(trials: list[Trial]) -> None:
    drawn = column(trials, "optimizer.schedule.warmup")

    def cdf(k: np.ndarray) -> np.ndarray:
        """P(10^U[-2, 6] < k)."""
        return np.clip((np.log10(np.maximum(k, 1e-9)) + 2) / 8, 0, 1)

    assert (drawn == np.floor(drawn)).all()
    assert stats.binomtest(int((drawn == 0).sum()), N, 0.25).pvalue > LEAST_P
    assert randomised(drawn, cdf(drawn), cdf(drawn + 1)) > LEAST_P


def test_the_sizes_of_a_model_always_fit_its_task(trials: list[Trial]) -> None:
    s, v = column(trials, "task.length"), column(trials, "task.vocabulary")
    d, dk, dv = (column(trials, f"model.{name}") for name in ("width", "key_width", "value_width"))
    assert (s >= 2).all()
    assert (s < v).all()
    assert ((v - 1 <= dv) & (dv <= d)).all()
    assert ((dk >= 1) & (dk <= d)).all()
    assert (d < 4 * (v - 1)).all()


def test_the_extreme_coordinates_give_valid_trials_too(space: spaces.Space) -> None:
    space.check(0)


def test_the_search_is_the_papers(space: spaces.Space) -> None:
    trial = space.sample(1000, lambda _: 0.5)
    training = {
        "steps": 10_000_000,
        "batch": 128,
        "accumulate": 1,
        "validate_every": 10_000,
        "validation_batch": 1024,
        "dtype": "float32",
        "autocast": "none",
        "diagnostics": False,
        "pad_shapes": False,
    }
    assert trial.config["training"] == training
    assert trial.config["model"]["scorer"]["name"] == "softmax"
    assert trial.config["optimizer"]["schedule"]["name"] == "linear"
    assert space.search.trials == 260 * space.search.group == 260_000
    assert (trial.group, str(space.search.objective)) == (1, "tvd/bema")
    assert [(policy.metric, policy.steps) for policy in space.search.stopping] == [("tvd", 1_000_000)]


def test_the_quick_version_draws_the_same_of_a_trial_but_for_lengths_of_time(space: spaces.Space) -> None:
    quick = spaces.load("quick/set_complement", families())
    quick.check()
    bounds = {draw.name: draw.bounds for draw in space.trial_draws}
    shorter = {draw.name for draw in quick.trial_draws if bounds[draw.name] != draw.bounds}
    assert bounds.keys() == {draw.name for draw in quick.trial_draws}
    assert shorter == {"optimizer.schedule.warmup", "averaging.rho"}
