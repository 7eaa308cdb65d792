"""The numbers of a study's report: by hand on a small study, in plain Python on a random one, by resampling."""

from __future__ import annotations

import json
import math
from statistics import fmean, median
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graft.report.data import StudyData
from graft.report.sections._group_measures import measure_groups
from graft.report.sections.best_per_group import BestPerGroup
from graft.report.sections.dropout import Dropout
from search.analysis.study.groups import compare_within_groups
from search.analysis.study.scores import distribution
from search.analysis.study.top_k import median_interval, top_k_statistics
from search.analysis.study.trials import best_trials, compare_parameters, count_states
from tests.support.synthetic_studies import (
    DROPOUTS,
    metrics_frame,
    set_complement_study,
    study_data,
    study_row,
    trial_row,
    trials_frame,
)

pytestmark = pytest.mark.fast

ONE_IN = {"best": 10**9, "best 0.1 %": 1000, "best 1 %": 100, "best 10 %": 10, "all": 1}


def by_hand() -> StudyData:
    """Two groups of two finished trials each, one diverged trial and one that still runs."""
    config = {"task": {"name": "set_complement", "length": 2, "vocabulary": 5, "open": True}}
    model = {"name": "minimal", "width": 8, "key_width": 3, "value_width": 6, "norm_epsilon": 1e-6}
    rows = [
        trial_row(
            number,
            number // 3,
            "diverged" if number == 2 else "running" if number == 5 else "finished",
            objective,
            params={"task.generalisation_gap": number // 3 * 3, "model.embedding_dropout": rate, "x": "same"},
            config=config | {"model": model},
        )
        for number, objective, rate in [
            (0, 0.2, 0.0),
            (1, 0.1, 0.25),
            (2, None, 0.5),
            (3, 0.3, 0.1),
            (4, 0.6, 0.3),
            (5, None, 0.4),
        ]
    ]
    values = {  # number -> raw and bema values at steps 10 and 20
        0: ([0.5, 0.4], [0.2, 0.3]),
        1: ([0.3, 0.35], [0.1, None]),
        2: ([0.01, None], [0.01, None]),
        3: ([0.9, 0.8], [0.3, 0.3]),
        4: ([0.7, 0.7], [0.6, 0.65]),
        5: ([0.001, 0.001], [0.001, 0.001]),
    }
    metrics = [
        (number, step, "tvd", variant, "", value)
        for number, both in values.items()
        for index, step in enumerate((10, 20))
        for variant, value in zip(("raw", "bema"), (both[0][index], both[1][index]), strict=True)
    ]
    return study_data(study_row(trials=6), trials_frame(rows), metrics_frame(metrics))


def lookup(frame: pl.DataFrame, **wanted: Any) -> dict[str, Any]:
    """Return the only row with these values."""
    return frame.row(
        by_predicate=pl.all_horizontal(pl.col(name) == value for name, value in wanted.items()), named=True
    )


def test_trials_are_counted_by_state_in_the_order_of_a_trials_life() -> None:
    assert list(count_states(by_hand().trials).items()) == [("running", 1), ("finished", 4), ("diverged", 1)]


def test_the_best_trials_come_with_what_differs_between_them_and_what_does_not() -> None:
    best = best_trials(by_hand().ended, "minimize", 3)
    assert best["number"].to_list() == [1, 0, 3]
    assert best["objective"].to_list() == [0.1, 0.2, 0.3]
    parameters = compare_parameters(best["params"])
    assert parameters.varying == {"task.generalisation_gap": (0, 0, 3), "model.embedding_dropout": (0.25, 0.0, 0.1)}
    assert parameters.shared == {"x": "same"}


def test_a_parameter_that_only_some_trials_have_differs() -> None:
    rows = [trial_row(n, n, "finished", n + 1.0, params={"n": 1.5} if n else {"m": "a"}) for n in range(2)]
    parameters = compare_parameters(best_trials(trials_frame(rows), "minimize")["params"])
    assert parameters.varying == {"m": ("a", None), "n": (None, 1.5)}
    assert parameters.shared == {}


def test_statistics_count_ended_trials_once_with_their_best_or_last_value() -> None:
    statistics = by_hand().statistics
    raw = lookup(statistics, kept="best", variant="raw", portion="best")
    assert (raw["trials"], raw["value"], raw["change"]) == (4, 0.3, None)
    bema = lookup(statistics, kept="best", variant="bema", portion="best 10 %")
    assert (bema["counted"], bema["value"], bema["raw"], bema["margin"]) == (1, 0.1, 0.3, None)
    assert bema["change"] == pytest.approx(-2 / 3)
    last = lookup(statistics, kept="last", variant="bema", portion="best")
    assert (last["trials"], last["value"]) == (3, 0.3)  # the last value of trial 1 is not finite


def test_groups_have_their_sizes_gap_and_extra_dimensions() -> None:
    groups = measure_groups(by_hand().groups)
    assert groups.drop("width_multiplier", "value_coefficient").rows(named=True) == [
        {
            "group_number": group,
            "trials": 2,
            "gap": gap,
            "task.length": 2,
            "task.vocabulary": 5,
            "model.width": 8,
            "model.key_width": 3,
            "model.value_width": 6,
        }
        for group, gap in ((0, 0.0), (1, 3.0))
    ]
    assert groups["width_multiplier"].to_list() == [2.0, 2.0]
    assert groups["value_coefficient"].to_list() == [0.5, 0.5]


def test_a_width_of_no_extra_dimensions_has_value_coefficient_0() -> None:
    sizes = {"task": {"vocabulary": 5}, "model": {"width": 4, "value_width": 4}}
    rows = [trial_row(number, 0, "finished", 1.0, config=sizes if number else {}) for number in range(2)]
    rows[0]["config"] = None
    groups = measure_groups(study_data(study_row(), trials_frame(rows), metrics_frame([])).groups)
    assert groups["value_coefficient"].to_list() == [0.0]


def test_groups_compare_their_own_best_trials() -> None:
    by_group = BestPerGroup(data=by_hand())
    second = lookup(by_group.statistics, group_number=1, variant="bema", portion="best")
    assert (second["value"], second["raw"], second["gap"]) == (0.3, 0.7, 3.0)
    across = lookup(compare_within_groups(by_group.statistics), variant="bema", portion="best")
    assert (across["groups"], across["better"], across["low"]) == (2, 2, None)
    assert across["median"] == pytest.approx((0.1 / 0.3 - 1 + 0.3 / 0.7 - 1) / 2)
    assert by_group.medians.filter(variant="raw", portion="best").select("gap", "median").rows() == [
        (0.0, 0.3),
        (3.0, 0.7),
    ]


def test_dropout_is_averaged_over_the_best_trials_of_each_group_and_variant() -> None:
    dropout = Dropout(data=by_hand()).rates
    rates = dropout.rates.filter(portion="best 10 %").select("group_number", "variant", "rate").rows()
    assert rates == [(0, "bema", 0.25), (0, "raw", 0.25), (1, "bema", 0.1), (1, "raw", 0.3)]
    assert lookup(dropout.rates, group_number=1, variant="raw", portion="all")["rate"] == pytest.approx(0.2)
    assert lookup(dropout.pooled, variant="raw", portion="best 1 %")["rate"] == pytest.approx((0.25 + 0.3) / 2)
    assert dropout.trend["extra"].unique().to_list() == ["fewer"]  # both groups have the median multiplier


def test_curves_end_at_all_trials_and_start_at_the_best() -> None:
    curve = distribution(by_hand().scores.all()).filter(variant="bema")
    assert curve.select("value", "share").rows() == [(0.1, 0.25), (0.2, 0.5), (0.3, 0.75), (0.6, 1.0)]


@pytest.fixture(scope="module")
def random_study() -> tuple[pl.DataFrame, pl.DataFrame]:
    return set_complement_study(groups=3, members=230, validations=4, variants=("raw", "bema", "ema"), seed=5)


def plain_scores(trials: pl.DataFrame, metrics: pl.DataFrame, kept: str) -> dict[tuple[str, str], dict[int, float]]:
    """(metric, variant) -> trial -> value, by loops."""
    ended = {row["number"] for row in trials.iter_rows(named=True) if row["objective"] is not None}
    scores: dict[tuple[str, str], dict[int, float]] = {}
    for number, _, name, variant, _, value in metrics.iter_rows():
        if number in ended:
            cell = scores.setdefault((name, variant), {})
            cell[number] = value if kept == "last" else min(value, cell.get(number, math.inf))
    return scores


def plain_tail(values: list[float], portion: str) -> float:
    return fmean(sorted(values)[: max(1, len(values) // ONE_IN[portion])])


@pytest.mark.parametrize("kept", ["best", "last"])
def test_statistics_equal_plain_python(random_study: tuple[pl.DataFrame, pl.DataFrame], kept: str) -> None:
    scores = plain_scores(*random_study, kept)
    statistics = study_data(study_row(), *random_study).statistics.filter(kept=kept)
    assert statistics.height == 3 * 3 * 3
    for row in statistics.iter_rows(named=True):
        values = list(scores[row["name"], row["variant"]].values())
        assert row["value"] == pytest.approx(plain_tail(values, row["portion"]), rel=1e-12)
        raw = plain_tail(list(scores[row["name"], "raw"].values()), row["portion"])
        if row["variant"] != "raw" and raw:
            assert row["change"] == pytest.approx(row["value"] / raw - 1, rel=1e-9)
        else:
            assert row["change"] is None


def test_group_statistics_and_dropout_equal_plain_python(random_study: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    trials, _ = random_study
    scores = plain_scores(*random_study, "best")
    group = dict(trials.select("number", "group_number").iter_rows())
    params = {number: json.loads(text) for number, text in trials.select("number", "params").iter_rows()}
    study = study_data(study_row(), *random_study)
    rates = Dropout(data=study).rates.rates

    def members(name: str, variant: str, wanted: int) -> dict[int, float]:
        return {number: value for number, value in scores[name, variant].items() if group[number] == wanted}

    for row in study.group_statistics.iter_rows(named=True):
        values = members(row["name"], row["variant"], row["group_number"])
        assert row["value"] == pytest.approx(plain_tail(list(values.values()), row["portion"]), rel=1e-12)
    assert rates.height == 3 * 3 * 2 * 4
    for row in rates.iter_rows(named=True):
        values = members("tvd", row["variant"], row["group_number"])
        best = sorted(values, key=values.__getitem__)[: max(1, len(values) // ONE_IN[row["portion"]])]
        assert row["rate"] == pytest.approx(fmean(params[number][row["dropout"]] for number in best), rel=1e-12)


def test_curves_are_points_of_the_distribution(random_study: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    scores = plain_scores(*random_study, "best")
    curves = distribution(study_data(study_row(), *random_study).scores.all()).filter(name="tvd")
    for row in curves.iter_rows(named=True):
        values = scores["tvd", row["variant"]].values()
        assert row["share"] == pytest.approx(sum(value <= row["value"] for value in values) / len(values))


def test_more_is_better_where_the_study_maximises_and_for_accuracies() -> None:
    rows = [trial_row(number, number, "finished", number / 10) for number in range(4)]
    metrics = [
        (number, step, name, "raw", "", (number + step) / 10 if name != "loss" else 1 - (number + step) / 10)
        for number in range(4)
        for step in (1, 2)
        for name in ("reward", "accuracy", "loss")
    ]
    study = study_data(
        study_row(objective="reward/raw", direction="maximize"), trials_frame(rows), metrics_frame(metrics)
    )
    assert best_trials(study.ended, "maximize")["number"].to_list() == [3, 2, 1, 0]
    best = study.statistics.filter(kept="best", portion="best").select("name", "sign", "value").rows()
    assert best == [("reward", -1, 0.5), ("accuracy", -1, 0.5), ("loss", 1, 0.5)]
    assert distribution(study.scores.all()).filter(name="reward")["value"].to_list() == [0.5, 0.4, 0.3, 0.2]


def test_conditions_are_metrics_of_their_own_and_the_objectives_comes_first() -> None:
    rows = [trial_row(number, 0, "finished", 0.5) for number in range(2)]
    metrics = [
        (number, 1, name, "raw", condition, 0.5)
        for number in range(2)
        for name, condition in (("itp", ""), ("tvd", ""), ("tvd", "length=64"), ("tvd", "length=32"))
    ]
    study = study_data(study_row(objective="tvd/raw/length=64"), trials_frame(rows), metrics_frame(metrics))
    conditions = study.statistics.filter(kept="best", portion="best").select("name", "condition").rows()
    assert conditions == [("tvd", "length=64"), ("tvd", ""), ("tvd", "length=32"), ("itp", "")]


def test_trials_of_their_own_groups_make_no_groups() -> None:
    trials, metrics = set_complement_study(groups=40, members=1, validations=2)
    study = study_data(study_row(), trials, metrics)
    assert study.groups.is_empty()
    assert study.group_statistics.is_empty()
    assert compare_within_groups(study.group_statistics).is_empty()
    assert set(Dropout(data=study).rates.pooled["dropout"]) == set(DROPOUTS)


def test_a_study_without_trials_has_no_numbers() -> None:
    study = study_data(study_row(), trials_frame([]), metrics_frame([]))
    best, shares = best_trials(study.ended, "minimize"), distribution(study.scores.all())
    frames = (best, study.statistics, shares, study.groups, study.group_statistics)
    medians, rates = BestPerGroup(data=study).medians, Dropout(data=study).rates
    assert all(frame.is_empty() for frame in (*frames, medians, rates.rates))
    assert count_states(study.trials) == {}


def test_a_text_that_ends_in_dropout_is_no_rate() -> None:
    rows = [trial_row(0, 0, "finished", 0.5, params={"kind": "dropout", 'an "odd" dropout': 0.5, "rate": 1})]
    study = study_data(study_row(), trials_frame(rows), metrics_frame([(0, 1, "tvd", "raw", "", 0.5)]))
    assert Dropout(data=study).rates.rates.is_empty()


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Costs of raw and averaged parameters of the same trials, as skewed and as alike as real ones."""
    generator = np.random.default_rng(seed)
    raw = 10 ** generator.normal(-1, 0.4, count)
    return raw, raw * 10 ** generator.normal(-0.1, 0.1, count)


def scored(raw: np.ndarray, bema: np.ndarray) -> pl.DataFrame:
    number = np.arange(len(raw))
    sides = [pl.DataFrame({"number": number, "cost": cost}) for cost in (raw, bema)]
    named = [side.with_columns(variant=pl.lit(name), sign=1) for side, name in zip(sides, ("raw", "bema"), strict=True)]
    return pl.concat(named).with_columns(name=pl.lit("tvd"))


def test_margins_are_those_of_the_bootstrap() -> None:
    raw, bema = pairs(2000, seed=1)
    generator, count = np.random.default_rng(2), 200
    means, changes = [], []
    for _ in range(600):
        drawn = generator.integers(0, len(raw), len(raw))
        mean, raw_mean = np.sort(bema[drawn])[:count].mean(), np.sort(raw[drawn])[:count].mean()
        means.append(mean)
        changes.append(mean / raw_mean - 1)
    row = lookup(top_k_statistics(scored(raw, bema), ["name"]), variant="bema", portion="best 10 %")
    assert row["counted"] == count
    assert row["margin"] == pytest.approx(1.96 * np.std(means), rel=0.12)
    assert row["change_margin"] == pytest.approx(1.96 * np.std(changes), rel=0.12)


@pytest.mark.long
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    truth, _ = pairs(2_000_000, seed=3)
    exact = np.sort(truth)[:200_000].mean()
    hits = 0
    for seed in range(200):
        row = lookup(top_k_statistics(scored(*pairs(500, seed)), ["name"]), variant="raw", portion="best 10 %")
        hits += abs(row["value"] - exact) < row["margin"]
    assert 0.88 < hits / 200 < 0.99


@settings(max_examples=50)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=60))
def test_median_intervals_hold_the_median_between_values(values: list[float]) -> None:
    interval = pl.DataFrame({"x": values}).select(**median_interval("x")).row(0, named=True)
    assert interval["median"] == pytest.approx(median(values))
    if len(values) < 6:
        assert (interval["low"], interval["high"]) == (None, None)
    else:
        ordered, d = sorted(values), int(stats.binom.ppf(0.025, len(values), 0.5))
        assert ordered[d - 1] <= interval["low"] <= ordered[d] <= interval["median"]
        assert interval["median"] <= ordered[-d - 1] <= interval["high"] <= ordered[-d]


@pytest.mark.parametrize("count", [6, 7, 8, 9, 10, 25])
def test_median_intervals_cover_the_median_as_often_as_they_say(count: int) -> None:
    values = np.random.default_rng(count).exponential(size=4000 * count)
    frame = pl.DataFrame({"run": np.repeat(np.arange(4000), count), "x": values})
    intervals = frame.group_by("run").agg(**median_interval("x"))
    covered = intervals.filter(pl.lit(np.log(2)).is_between("low", "high")).height / 4000
    assert 0.94 < covered < 0.96


def test_of_equally_good_trials_the_earlier_ones_are_the_best() -> None:
    rows = [
        trial_row(number, 0, "finished", 0.5, params={"model.dropout": number / 100}) for number in reversed(range(40))
    ]
    metrics = metrics_frame([(number, 1, "tvd", "raw", "", 0.5) for number in reversed(range(40))])
    study = study_data(study_row(), trials_frame(rows), metrics)
    assert best_trials(study.ended, "minimize", 3)["number"].to_list() == [0, 1, 2]
    rates = Dropout(data=study).rates.rates
    assert lookup(rates, portion="best 10 %")["rate"] == pytest.approx((0.0 + 0.01 + 0.02 + 0.03) / 4)
