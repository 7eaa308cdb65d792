"""Statistics of arms: against scipy, closed forms, every subset, and studies made to have an effect or none."""

from __future__ import annotations

import tracemalloc
from itertools import combinations, product
from math import sqrt
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from search.analysis.arms.comparison import ComparisonError, compare_arms
from search.analysis.statistics.aggregates import interquartile_interval, interquartile_mean, probability_of_improvement
from search.analysis.statistics.best_of import expected_best
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import mean_interval, summarize_differences
from search.analysis.statistics.verdicts import BETTER, UNDECIDED, WORSE

FINITE = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


# -------------------------------------------------------------------------------------------------------------- paired


@given(st.lists(FINITE, min_size=2, max_size=9))
def test_the_sign_flip_test_tries_every_pattern(values: list[float]) -> None:
    differences = np.array(values)
    means = np.array([np.mean(differences * signs) for signs in product((-1, 1), repeat=len(values))])
    mean, slack = differences.mean(), 1e-12 * max(1.0, float(np.abs(differences).max()))
    tails = (means >= mean - slack).mean(), (means <= mean + slack).mean()
    assert summarize_differences(differences).p_sign_flip == pytest.approx(min(1.0, 2 * min(tails)))


def test_a_few_pairs_cannot_be_significant_without_normality() -> None:
    for pairs in (3, 5, 6, 8):
        summary = summarize_differences(np.arange(1.0, pairs + 1))
        assert summary.p_sign_flip == summary.smallest_p == 2 / 2**pairs


def test_paired_t_is_scipys() -> None:
    random = np.random.default_rng(0)
    arm, baseline = random.normal(size=(2, 7))
    summary, expected = summarize_differences(arm - baseline), stats.ttest_rel(arm, baseline)
    interval = expected.confidence_interval(0.95)
    assert (summary.p, summary.low, summary.high) == pytest.approx(
        (expected.pvalue, interval.low, interval.high), rel=1e-9
    )


def test_no_difference_is_no_evidence() -> None:
    summary = summarize_differences(np.zeros(8))
    assert (summary.decisive_p, summary.p_sign_flip, summary.low, summary.high) == (1, 1, 0, 0)


@pytest.mark.parametrize("count", [5, 8])
def test_intervals_of_a_mean_cover_it(count: int) -> None:
    random = np.random.default_rng(count)
    intervals = np.array([mean_interval(random.normal(3, 2, count)) for _ in range(3_000)])
    assert 0.93 < np.mean((intervals[:, 0] < 3) & (intervals[:, 1] > 3)) < 0.97


# ---------------------------------------------------------------------------------------------------------- aggregates


def test_the_interquartile_mean_is_of_all_runs_of_all_tasks() -> None:
    assert interquartile_mean([np.array([0.0, 1, 2, 100]), np.array([3.0, 4, 5, -100])]) == pytest.approx(2.5)


@given(st.lists(FINITE, min_size=1, max_size=8), st.lists(FINITE, min_size=1, max_size=8))
def test_the_probability_of_improvement_is_mann_and_whitneys(values: list[float], other: list[float]) -> None:
    expected = stats.mannwhitneyu(other, values).statistic / (len(values) * len(other))
    assert probability_of_improvement([np.array(values)], [np.array(other)]) == pytest.approx(expected)


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan])


@given(st.lists(SPECIAL, min_size=1, max_size=8), st.lists(SPECIAL, min_size=1, max_size=8))
def test_the_probability_of_improvement_counts_every_pair(values: list[float], other: list[float]) -> None:
    runs, baseline = np.array(values), np.array(other)
    expected = np.mean((runs[:, None] < baseline) + 0.5 * (runs[:, None] == baseline))
    assert probability_of_improvement([runs], [baseline]) == expected


def test_the_probability_of_improvement_of_many_runs_takes_little_memory() -> None:
    runs = np.arange(20_000.0)
    tracemalloc.start()
    try:
        assert probability_of_improvement([runs], [runs]) == 0.5
        assert tracemalloc.get_traced_memory()[1] < 1e7
    finally:
        tracemalloc.stop()


def test_a_diverged_run_is_worse_than_any() -> None:
    assert probability_of_improvement([np.array([1.0, np.inf])], [np.array([2.0, 2.0])]) == 0.5


def test_the_interval_of_an_interquartile_mean_of_one_task_is_that_of_scipys_trimmed_t_test() -> None:
    runs = np.random.default_rng(1).exponential(size=23)
    # Against two numbers that are alike, whose own variance is 0 in Yuen's test, t is that of the one sample.
    low, high = interquartile_interval([runs])
    trimmed: Any = stats.ttest_ind(runs, np.zeros(4), equal_var=False, trim=cast(Any, 0.25))
    mean = interquartile_mean([runs])
    assert (low + high) / 2 == pytest.approx(mean)
    cut = int(0.25 * 23)
    error = (high - low) / 2 / stats.t.ppf(0.975, 23 - 2 * cut - 1)
    # Yuen's squared error is (n - 1) s^2 / (h (h - 1)), Tukey and McLaughlin's n s^2 / h^2; s is winsorized.
    h = 23 - 2 * cut
    assert mean / error == pytest.approx(trimmed.statistic * sqrt((22 / (h * (h - 1))) / (23 / h**2)))


def test_the_interval_of_an_interquartile_mean_knows_nothing_of_how_tasks_differ() -> None:
    random = np.random.default_rng(2)
    tasks = [np.tile(level, 5) + 1e-9 * random.normal(size=5) for level in range(6)]
    low, high = interquartile_interval(tasks)
    assert high - low < 1e-8


# --------------------------------------------------------------------------------------------------------- corrections


def test_holm_and_benjamini_hochberg() -> None:
    # Holm: sorted p times 5, 4, 3, 2, 1, never falling.
    p = np.array([0.01, np.nan, 0.04, 0.03, 0.005, 0.5])
    holm = adjust_p(p, "holm")
    assert holm[[0, 2, 3, 4, 5]] == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.5])
    assert np.isnan(holm[1])
    bh = adjust_p(p, "bh")
    assert bh[[0, 2, 3, 4, 5]] == pytest.approx(stats.false_discovery_control(p[~np.isnan(p)]))


# ------------------------------------------------------------------------------------------------------------- best of


@given(st.lists(FINITE, min_size=1, max_size=7))
def test_the_best_of_k_is_the_mean_over_all_subsets(values: list[float]) -> None:
    expected = [np.mean([min(some) for some in combinations(values, k)]) for k in range(1, len(values) + 1)]
    assert expected_best(np.array(values)) == pytest.approx(expected, abs=1e-6)


# ---------------------------------------------------------------------------------------------------------------- arms


def results(**arms: list[float | None]) -> pl.DataFrame:
    rows = [
        {
            "condition": "",
            "arm": arm,
            "seed": seed,
            "value": value,
            "state": "diverged" if value is None else "finished",
        }
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    ]
    return pl.DataFrame(rows, schema_overrides={"value": pl.Float64})


def row(frame: pl.DataFrame, arm: str) -> dict[str, Any]:
    [values] = frame.filter(pl.col("arm") == arm).to_dicts()
    return values


def test_a_divergence_is_a_result() -> None:
    table = compare_arms(results(base=[1.0, 2, 3, 4], new=[0.5, None, 2.5, 3.5]), "base", "minimize").table
    new = row(table, "new")
    assert (new["finished"], new["diverged"], new["pairs"]) == (3, 1, 3)
    assert (new["wins"], new["ties"], new["losses"]) == (3, 0, 1)
    assert new["difference"] == -0.5
    assert (
        new["improvement"]
        < row(compare_arms(results(base=[1.0, 3, 4], new=[0.5, 2.5, 3.5]), "base", "minimize").table, "new")[
            "improvement"
        ]
    )


@pytest.mark.parametrize(("direction", "verdict"), [("minimize", BETTER), ("maximize", WORSE)])
def test_less_is_better_where_the_metric_is_minimized(direction: Any, verdict: str) -> None:
    base = [1.0, 2, 3, 4, 5, 6]
    table = compare_arms(results(base=base, new=[value - 1 + value / 100 for value in base]), "base", direction).table
    assert row(table, "new")["verdict"] == verdict
    assert row(table, "base")["verdict"] is None


def test_ties_are_ties() -> None:
    new = row(compare_arms(results(base=[0.0] * 8, new=[0.0] * 8), "base", "minimize").table, "new")
    assert (new["wins"], new["ties"], new["losses"], new["improvement"]) == (0, 8, 0, 0.5)
    assert new["verdict"] == UNDECIDED


def test_bad_results_are_refused() -> None:
    with pytest.raises(ComparisonError, match="baseline 'nothing' is no arm with results; choose one of base"):
        compare_arms(results(base=[1.0]), "nothing", "minimize")
    twice = pl.concat([results(base=[1.0]), results(base=[2.0])])
    with pytest.raises(ComparisonError, match="arm 'base' has 2 results with seed 0"):
        compare_arms(twice, "base", "minimize")


def claims(effect: float, seed: int) -> int:
    """Verdicts on three arms of eight seeds; arms share each seed's luck, and differ by noise and an effect."""
    random = np.random.default_rng(seed)
    luck = random.normal(size=8)
    arms = {name: (luck + random.normal(size=8)).tolist() for name in ("base", "a", "b", "c")}
    arms["a"] = [value + effect for value in arms["a"]]
    table = compare_arms(results(**arms), "base", "minimize").table
    return int(table["verdict"].is_in([BETTER, WORSE]).sum())


def test_studies_without_effect_make_claims_at_most_once_in_twenty() -> None:
    false = sum(claims(0.0, seed) > 0 for seed in range(60))
    # Of 60 tables, 5 % are 3; 9 or more have a chance below 1 %.
    assert false < 9


@pytest.mark.long
def test_a_thousand_studies_without_effect() -> None:
    assert sum(claims(0.0, seed) > 0 for seed in range(1_000)) <= 60


@pytest.mark.long
def test_an_effect_is_found() -> None:
    assert np.mean([claims(-4.0, seed) > 0 for seed in range(40)]) > 0.9
