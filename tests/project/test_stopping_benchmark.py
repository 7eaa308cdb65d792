"""Stopping policies compared on a table's curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.stopping import (
    CHOICES,
    Curves,
    Full,
    OneRung,
    compare,
    compare_policies,
    features,
    level_of,
    make_policy,
    read_curves,
    search,
)
from graft.launching.surrogate import TrialTable

pytestmark = pytest.mark.fast

SPACE = """
study: kept
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 4, value_width: 8}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-4, -1)}
averaging: none
training: {steps: 40, validate_every: 10}
search: {trials: 60, seed: 3, history: full, objective: {maximize: itr/raw, at: last}}
"""


def curves(task: str = "made", seed: int = 0, trials: int = 96, validations: int = 4) -> Curves:
    """Return curves that fall to a final cost of each trial's own, whose order is told at once."""
    final = np.random.default_rng(seed).random(trials)
    costs = final[:, None] + 1 / np.arange(1, validations + 1)
    return Curves(task=task, costs=costs, steps=10)


def test_curves_are_costs_and_infinite_where_a_trial_diverged(tmp_path: Path) -> None:
    rows = [
        {"task": "t", "slice": 0, "number": number, "state": state, "space": SPACE}
        for number, state in enumerate(["finished", "diverged"])
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "trials.parquet")
    values = [
        {"task": "t", "slice": 0, "number": number, "step": step, "name": "itr", "variant": variant, "condition": "",
         "value": step / 100}
        for number, last in ((0, 40), (1, 20)) for step in range(10, last + 1, 10) for variant in ("raw", "bema")
    ]  # fmt: skip
    pl.DataFrame(values).write_parquet(tmp_path / "metrics.parquet")
    task_curves = read_curves(TrialTable(tmp_path), "t")
    assert (task_curves.steps, task_curves.last) == (10, 4)
    assert task_curves.costs.tolist() == [[-0.1, -0.2, -0.3, -0.4], [-0.1, -0.2, np.inf, np.inf]]


def test_a_search_counts_all_steps_until_a_trial_has_ended_at_the_level() -> None:
    made = curves()
    order = np.arange(96)
    level = float(made.costs[:32, -1].min())
    assert search(made, Full(), order, level, waves=False) == 32 * 4 * 10
    assert search(made, OneRung(4), order, level, waves=True) == (32 + 4 * 3) * 10
    # Nothing reaches a level below all: what all trials to their end take is added.
    assert search(made, OneRung(4), order, -1.0, waves=True) == (3 * (32 + 4 * 3) + 96 * 4) * 10


@pytest.mark.parametrize("name", list(CHOICES))
def test_every_policy_finds_what_is_told_at_once_and_never_stops_the_best(name: str) -> None:
    class Certain:
        """A model that gives every trial the probability 0."""

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return np.zeros(len(rows))

    made = curves()
    policy = make_policy(name, CHOICES[name][-1], Certain(), made.last)
    steps = search(made, policy, np.arange(96), float(made.costs[:32, -1].min()), waves=name == "one rung")
    assert steps <= search(made, Full(), np.arange(96), float(made.costs[:32, -1].min()), waves=False)


@pytest.mark.long
def test_policies_are_compared_with_what_was_chosen_on_other_tasks() -> None:
    tasks = [curves(name, seed, trials=64) for seed, name in enumerate("abc")]
    comparison = compare(tasks, 2)
    assert comparison.group_by("task", "policy").len()["len"].to_list() == [2] * 12
    ratio, low, high = compare_policies(comparison, "full", "one rung")
    assert 1 < low <= ratio <= high
    assert compare_policies(comparison, "asha", "asha") == (1.0, 1.0, 1.0)


def test_the_level_is_the_best_of_64() -> None:
    made = curves(trials=64)
    assert level_of(made) == made.costs[:, -1].min()


def test_features_are_finite_and_in_order() -> None:
    [first, second] = features([[0.5], [0.5, 0.25]], 8).tolist()
    assert first == [0.125, 0.5, 0.5, 0.5, 0.0]
    assert second == [0.25, 0.25, 0.25, 0.375, -0.25]
