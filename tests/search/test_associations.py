"""How far values tell the objective: what scipy says of the same ranks, and how often the intervals hold the truth."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.stats import f_oneway, rankdata

from search.analysis.study.associations import FEWEST, rank_associations

pytestmark = pytest.mark.fast


def made(random: np.random.Generator, count: int) -> pl.DataFrame:
    """Return trials whose groups `a`, `b` and `c` differ in the mean, beside a number and a word that tell nothing."""
    words = random.choice(list("abc"), count)
    shift = np.select([words == "b", words == "c"], [0.7, 1.2])
    return pl.DataFrame(
        {
            "objective": random.normal(size=count) + shift,
            "tells": words,
            "number": random.normal(size=count),
            "word": random.choice(list("wxyz"), count),
        }
    )


@pytest.mark.long
def test_what_is_told_apart_is_so_by_scipy() -> None:
    random = np.random.default_rng(0)
    both = set[bool]()
    for _ in range(40):
        trials = made(random, 40)
        for row in rank_associations(trials, ["tells", "word"]).iter_rows(named=True):
            ranks = rankdata(trials["objective"])
            groups = [ranks[trials[row["value"]].to_numpy() == value] for value in trials[row["value"]].unique()]
            # The interval leaves a fortieth on each side.
            is_told = bool(f_oneway(*groups).pvalue < 0.025)
            assert (row["low"] > 0) == is_told
            both.add(is_told)
    assert both == {True, False}


@pytest.mark.long
def test_intervals_hold_the_truth_and_nothing_is_seldom_told_apart() -> None:
    random = np.random.default_rng(1)
    [truth] = rank_associations(made(random, 200_000), ["tells"])["strength"]
    held, alarms = 0, 0
    for _ in range(400):
        rows = {
            row["value"]: row for row in rank_associations(made(random, 80), ["tells", "number", "word"]).to_dicts()
        }
        held += rows["tells"]["low"] <= truth <= rows["tells"]["high"]
        alarms += (rows["number"]["low"] > 0) + (rows["word"]["low"] > 0)
    assert 0.92 <= held / 400 <= 0.98
    assert alarms / 800 <= 0.04, "a fortieth is wanted"


def test_a_value_by_another_name_has_no_row() -> None:
    trials = made(np.random.default_rng(3), 60)
    names = {"a": "softmax", "b": "entmax", "c": "average"}
    scorer = pl.col("tells").replace_strict(names)
    trials = trials.with_columns(scorer=scorer, sometimes=pl.when(pl.int_range(pl.len()) > 3).then(scorer))
    values = rank_associations(trials, ["tells", "scorer", "sometimes", "number", "word"])["value"]
    assert set(values) == {"tells", "sometimes", "number", "word"}


def test_a_best_value_in_the_middle_is_found() -> None:
    random = np.random.default_rng(2)
    rate = random.uniform(-1, 1, 200)
    trials = pl.DataFrame({"rate": rate, "objective": rate**2 + 0.1 * random.normal(size=200)})
    [row] = rank_associations(trials, ["rate"]).to_dicts()
    assert row["low"] > 0.6, "its rank correlation is near 0"


def test_a_strength_lies_in_its_interval_up_to_the_end() -> None:
    random = np.random.default_rng(3)
    for noise in (0.0, 0.01, 0.1, 1.0, 10.0):
        value = random.normal(size=1_500)
        trials = pl.DataFrame({"value": value, "objective": value + noise * random.normal(size=1_500)})
        [row] = rank_associations(trials, ["value"]).to_dicts()
        assert 0 <= row["low"] <= row["strength"] <= row["high"] <= 1


def test_values_that_tell_nothing_are_left_out() -> None:
    trials = pl.DataFrame(
        {
            "objective": [float(number) for number in range(12)],
            "same": ["a"] * 12,
            "each": [f"{number}" for number in range(12)],
            "few": [1.0, 2.0] * (FEWEST // 2 - 1) + [None] * (14 - FEWEST),
            "two": [1, 2] * 6,
        }
    )
    assert rank_associations(trials, ["same", "each", "few", "two"])["value"].to_list() == ["two"]
    assert rank_associations(trials.clear(), ["two"]).is_empty()


@pytest.mark.parametrize("count", [300, 1000, 3000, 10_000, 30_000])
@pytest.mark.parametrize("shift", [0.1, 0.4, 1.0, 2.0])
def test_many_trials_have_intervals(count: int, shift: float) -> None:
    random = np.random.default_rng(count)
    group = random.integers(0, 2, count)
    trials = pl.DataFrame({"objective": random.normal(size=count) + shift * group, "value": group})
    [row] = rank_associations(trials, ["value"]).to_dicts()
    assert 0 <= row["low"] <= row["strength"] <= row["high"] < 1
    assert row["high"] - row["low"] < 5 / count**0.5
