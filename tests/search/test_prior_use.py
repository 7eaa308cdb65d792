"""What a prior did for a search."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from search.analysis.prior_use import READ, ColdCost, assess_prior, compare_origins, estimate_cold_cost
from search.samplers._features import flatten
from search.samplers._prior import Source, learn_prior, write_prior
from search.samplers.learned import _fit_prior
from spaces.records import Outcome, Trial
from spaces.space import Space
from tests.support.search_spaces import PLAIN, bowl, ended, space

pytestmark = pytest.mark.fast

WARM = "{{warm: {{sampler: {sampler}, candidates: '{candidates}', box: '{box}', floor: 0.25}}}}"


def searched(here: Space, cost: Callable[[Trial], float | None], lanes: int = 8) -> pl.DataFrame:
    """Search, so many at a time; the trials as a database has them."""
    strategy, outcomes = here.search.sampler.begin(here, []), list[Outcome]()
    for first in range(0, here.search.trials, lanes):
        asked = strategy.ask(range(first, min(first + lanes, here.search.trials)))
        batch = [ended(trial, cost(trial)) for trial in asked]
        strategy.tell(batch)
        outcomes += batch
    rows = [
        (outcome.number, outcome.group, outcome.state, outcome.objective, None, json.dumps(dict(outcome.draws)))
        for outcome in outcomes
    ]
    return pl.DataFrame(rows, schema=[*READ], orient="row", schema_overrides={"feasible": pl.Boolean})


def learned(path: Path) -> str:
    """Write the prior of 200 random trials of PLAIN, and return the sampler that has it."""
    here = space(PLAIN, seed=77, trials=200)
    trials = here.search.sampler.begin(here, []).ask(range(200))
    costs = np.array([bowl(trial) for trial in trials])
    write_prior(
        learn_prior([Source(task="other", configs=[flatten(trial.config) for trial in trials], costs=costs)]), path
    )
    return f"{{learned: {{prior: {path}, portfolio: 4}}}}"


def test_a_good_prior_is_seen_to_be_good(tmp_path: Path) -> None:
    here = space(PLAIN, sampler=learned(tmp_path / "prior.npz"), seed=1, trials=96)
    use = assess_prior(here, searched(here, bowl))
    assert use is not None
    assert use.said[0].startswith("The prior was learnt from 1 task; it chose at most 12 trials before it was judged")
    assert "the squares" not in use.said[0]
    origins = {origin.name: origin for origin in use.origins}
    assert sum(origin.trials for origin in use.origins) == 96
    assert sum(origin.winners for origin in use.origins) == 10
    assert origins["proposed"].winners >= 8
    assert origins["proposed"].median_rank < origins["unrestricted"].median_rank
    assert use.best_origin == "proposed"
    assert use.better is not None
    assert use.better[1] > 0.5
    assert isinstance(use.cold, ColdCost)
    assert use.cold.low > 5


@pytest.mark.long
def test_of_a_null_study_nothing_is_told(tmp_path: Path) -> None:
    """The objective is chance alone: with ten seeds, proposed trials are told apart from others in about none."""
    alarms = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        here = space(PLAIN, sampler=learned(tmp_path / "prior.npz"), seed=seed, trials=64)
        use = assess_prior(here, searched(here, lambda _: rng.random()))  # noqa: B023
        assert use is not None
        assert use.better is not None
        alarms += not use.better[1] <= 0.5 <= use.better[2]
    assert alarms <= 2


@pytest.mark.parametrize("objective", [0.5, None])
def test_a_study_of_one_trial_cannot_tell(tmp_path: Path, objective: float | None) -> None:
    here = space(PLAIN, sampler=learned(tmp_path / "prior.npz"), trials=1)
    use = assess_prior(here, searched(here, lambda _: objective))
    if objective is None:
        assert use is None
        return
    assert use is not None
    assert (use.better, use.best_number, len(use.origins)) == (None, 0, 1)
    assert use.cold == "0 unrestricted trials have ended, and fewer than 8 tell nothing"  # trial 0 is the portfolio's
    assert use.said[1] == "Too few trials have ended to judge it."


def test_a_study_without_a_trial_or_without_a_prior_has_no_section(tmp_path: Path) -> None:
    here = space(PLAIN, sampler=learned(tmp_path / "prior.npz"), trials=4)
    assert assess_prior(here, searched(here, bowl).clear()) is None
    cold = space(PLAIN, trials=4)
    assert assess_prior(cold, searched(cold, bowl)) is None


def test_a_warm_start_has_candidates_box_and_floor() -> None:
    name = space(PLAIN).trial_draws[0].name
    texts = {"candidates": json.dumps({name: [0.3, 0.4]}), "box": json.dumps({name: [0.2, 0.5]})}
    here = space(PLAIN, sampler=WARM.format(sampler="random", **texts), trials=60)
    use = assess_prior(here, searched(here, bowl))
    assert use is not None
    counts = {origin.name: origin.trials for origin in use.origins}
    assert counts["candidates"] == 2
    assert 5 < counts["unrestricted"] < 30
    assert sum(counts.values()) == 60
    assert use.said[1].startswith(f"Its box, in coordinates of the draws: {name} 0.20 to 0.50; the floor is 0.25.")
    assert isinstance(use.cold, ColdCost)
    steered = space(PLAIN, sampler=WARM.format(sampler="tpe", **texts), trials=20)
    use = assess_prior(steered, searched(steered, bowl))
    assert use is not None
    assert use.cold == "its unrestricted trials are not random, tpe chose them"


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_trials_by_hand_are_neither_of_the_prior_nor_random(sampler: str) -> None:
    name = space(PLAIN).trial_draws[0].name
    texts = {"candidates": json.dumps({name: [0.3, 0.4]}), "box": json.dumps({name: [0.2, 0.5]})}
    here = space(PLAIN, sampler=WARM.format(sampler=sampler, **texts), trials=60)
    trials = searched(here, bowl)
    added = trials.with_columns(pl.col("number") + 60, objective=pl.lit(-1.0))  # draws of other numbers
    alone, use = assess_prior(here, trials), assess_prior(here, pl.concat([trials, added]))
    assert alone is not None
    assert use is not None
    assert {origin.name: origin.trials for origin in use.origins} == {
        **{origin.name: origin.trials for origin in alone.origins},
        "by hand": 60,
    }
    assert (use.best_number, use.best_origin, use.better) == (60, "by hand", alone.better)


def test_trials_that_are_not_feasible_count_as_the_worst(tmp_path: Path) -> None:
    cold, here = (space(PLAIN, sampler=text, seed=1, trials=12) for text in ("random", learned(tmp_path / "prior.npz")))
    trials = searched(cold, lambda trial: trial.draws["optimizer.learning_rate"])
    trials = trials.with_columns(feasible=pl.col("objective") >= 0.5)
    assert 0 < trials["feasible"].sum() < 12
    use = assess_prior(here, trials)
    assert use is not None
    best = trials.filter("feasible").sort("objective").row(0, named=True)
    assert (use.best_number, use.origins[0].best) == (best["number"], best["objective"])
    broken = ~pl.col("feasible")
    states = pl.when(broken).then(pl.lit("diverged")).otherwise("state")
    diverged = trials.with_columns(state=states, objective=pl.when("feasible").then("objective"), feasible=None)
    assert use == assess_prior(here, diverged)
    assert assess_prior(here, trials.with_columns(feasible=pl.lit(value=False))) is None


def test_a_study_that_draws_nothing_has_no_section(tmp_path: Path) -> None:
    fixed = PLAIN.replace('10 ** uniform(-5, -1), beta1: "uniform(0, 1)", beta2: "uniform(0, 1)"', "0.01")
    here = space(fixed, sampler=learned(tmp_path / "prior.npz"), trials=12)
    assert assess_prior(here, searched(here, lambda _: 0.5)) is None


def test_without_the_library_it_is_said_that_the_prior_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = space(PLAIN, sampler=learned(tmp_path / "prior.npz"), seed=5, trials=24)
    trials = searched(here, bowl)
    _fit_prior.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    use = assess_prior(here, trials)
    assert use is not None
    assert use.said[0].startswith("What the prior said cannot be known here: learning from trials needs scikit-learn")
    assert {origin.name for origin in use.origins} == {"proposed", "unrestricted"}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_interval_of_a_comparison_holds_the_estimate_and_turns_with_it(
    proposed: list[float], other: list[float]
) -> None:
    comparison = compare_origins(np.array(proposed), np.array(other))
    turned = compare_origins(np.array(other), np.array(proposed))
    assert comparison is not None
    assert turned is not None
    assert 0 <= comparison[1] <= comparison[0] <= comparison[2] <= 1
    assert comparison[1] < comparison[2]
    assert comparison == pytest.approx((1 - turned[0], 1 - turned[2], 1 - turned[1]), abs=1e-6)


def test_the_interval_of_a_comparison_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    truth = stats.norm.cdf(0.7 / np.sqrt(2))
    hits = 0
    for _ in range(400):
        comparison = compare_origins(rng.normal(size=20), rng.normal(0.7, size=40))
        assert comparison is not None
        hits += comparison[1] <= truth <= comparison[2]
    assert 0.92 <= hits / 400 <= 0.985


@given(st.lists(st.floats(0, 10), max_size=60), st.floats(0, 10))
def test_the_cold_cost_is_the_inverse_of_a_share_with_the_interval_of_clopper_and_pearson(
    free: list[float], best: float
) -> None:
    cost = estimate_cold_cost(np.array(free), best)
    good = sum(objective <= best for objective in free)
    if len(free) < 8:
        assert isinstance(cost, str)
        return
    assert isinstance(cost, ColdCost)
    exact = stats.binomtest(good, len(free)).proportion_ci(0.95, method="exact")
    assert cost.low == pytest.approx(1 / exact.high)
    assert cost.high == (pytest.approx(1 / exact.low) if good else None)
    assert cost.trials == (pytest.approx(len(free) / good) if good else None)
