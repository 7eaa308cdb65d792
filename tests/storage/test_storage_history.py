"""Which reports stay: the policy against a plain reading of its words, in memory and in both databases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spaces.records import Metric, Report, TrialResult
from spaces.settings import History, Objective
from storage.control.history import Past, follow, predict_bytes, predict_rows
from tests.support.databases import OBJECTIVE, controlled, held, make_report, make_trial, raw

pytestmark = pytest.mark.fast

SCORES = st.lists(st.floats(0, 1) | st.just(math.inf), min_size=1, max_size=300)


def landmarks(count: int) -> set[int]:
    """Return the first 16, then 4 evenly spaced in each octave 16-31, 32-63, ...: written from the policy's words."""
    spaced = {2**k + quarter * 2 ** (k - 2) for k in range(4, 40) for quarter in range(4)}
    return {index for index in {*range(1, 17), *spaced} if index <= count}


def kept_by_the_words(policy: History, scores: list[float]) -> set[int]:
    """Return indices from 1 of the reports that a policy keeps."""
    count = len(scores)
    if policy == "full":
        return set(range(1, count + 1))
    if policy == "last":
        return {count}
    best = {1 + scores.index(min(scores))} if math.isfinite(min(scores)) else set[int]()
    return landmarks(count) | best | {count}


def kept_by_following(policy: History, scores: list[float]) -> set[int]:
    past, kept = Past(), set[int]()
    for index, score in enumerate(scores, start=1):
        past, gone = follow(policy, past, index * 10, score)
        kept = (kept | {index}) - {step // 10 for step in gone}
    return kept


@given(st.sampled_from(["full", "thin", "last"]), SCORES)
@example("thin", [0.5] * 17 + [0.1] + [0.5] * 30)  # long enough that the best is no landmark, which is rarely drawn
def test_following_a_trial_keeps_what_the_policy_says(policy: History, scores: list[float]):
    assert kept_by_following(policy, scores) == kept_by_the_words(policy, scores)


@given(SCORES)
def test_nothing_is_deleted_twice_and_nothing_that_was_not_there(scores: list[float]):
    past, there = Past(), set[int]()
    for step, score in enumerate(scores):
        past, gone = follow("thin", past, step, score)
        assert set(gone) <= there
        there = (there | {step}) - set(gone)


@given(st.integers(0, 5000), st.integers(1, 9))
def test_predicted_rows_bound_what_thin_leaves(validations: int, metrics: int):
    fewest = len(landmarks(validations) | {validations} - {0})
    most = min(validations, len(landmarks(validations)) + 2)
    assert fewest <= most
    assert predict_rows("thin", validations, metrics) == most * metrics
    assert predict_rows("full", validations, metrics) == validations * metrics
    assert predict_rows("last", validations, metrics) == min(1, validations) * metrics


@pytest.mark.parametrize(("direction", "score"), [("minimize", 0.25), ("maximize", -0.25)])
def test_the_score_is_smaller_for_better_reports(direction: str, score: float):
    objective = Objective(direction=direction, metric="tvd", variant="bema", condition="sigma=3")  # pyright: ignore
    others = (Metric("tvd", "bema", "", 9.0), Metric("tvd", "raw", "sigma=3", 9.0))
    report = Report(number=0, fence=1, step=1, metrics=(*others, Metric("tvd", "bema", "sigma=3", 0.25)))
    assert objective.cost_in(report) == score
    assert objective.cost_in(Report(number=0, fence=1, step=1, metrics=others)) == math.inf


@pytest.mark.parametrize("policy", ["full", "thin", "last"])
def test_the_database_keeps_what_the_policy_says(url: str, policy: History):
    scores = [0.9, 0.8] + [0.5 + 0.001 * (n % 7) for n in range(98)]
    scores[70] = 0.1
    with controlled(url, policy) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        for at in range(0, 100, 3):  # several reports of a trial in one call, and each call sent twice
            reports = [make_report(n, 10 * (i + 1), scores[i]) for i in range(at, min(at + 3, 100)) for n in (0, 1)]
            study.record(reports)
            study.record(reports)
        study.record([], [TrialResult(number=0, fence=1, state="finished", objective=0.1)])
    kept = {step // 10 for (step,) in raw(url, "SELECT step FROM metrics WHERE name = 'tvd'")}
    assert kept == kept_by_the_words(policy, scores)
    assert raw(url, "SELECT count(*) FROM metrics") == [(2 * 2 * len(kept),)]


def test_a_requeued_trial_is_thinned_from_its_new_start(url: str):
    with controlled(url, "last") as study:
        study.start([make_trial(0)], "w")
        study.record([make_report(0, 10), make_report(0, 20)])
        study.release(held(0))
        study.start([make_trial(0)], "w")
        study.record([make_report(0, 10, fence=2)])
        study.record([make_report(0, 20, fence=2)])
    assert raw(url, "SELECT DISTINCT step FROM metrics") == [(20,)]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["full", "thin"])
def test_the_predicted_size_is_that_of_the_file_within_thirty_percent(tmp_path: Path, policy: History):
    trials, validations, batch = 300, 60, 100
    path = tmp_path / "graft.db"
    names = [(name, variant) for name in ("loss", "accuracy", "tvd", "entropy") for variant in ("raw", "bema")]
    with controlled(f"sqlite:///{path}", policy) as study:
        study.start([make_trial(n) for n in range(trials)], "w")
        for index in range(validations):
            for first in range(0, trials, batch):
                metrics = tuple(Metric(name, variant, "", 1 / (index + 3)) for name, variant in names)
                numbers = range(first, first + batch)
                study.record([Report(number=n, fence=1, step=10_000 * (index + 1), metrics=metrics) for n in numbers])
    predicted = predict_bytes(make_trial(0), trials, predict_rows(policy, validations, len(names)))
    assert predicted == pytest.approx(path.stat().st_size, rel=0.3)


@pytest.mark.parametrize("length", [0, 600, 1300, 2500, 4500])
def test_the_predicted_size_holds_for_trials_of_any_length(tmp_path: Path, length: int):
    path = tmp_path / "graft.db"
    trials = [replace(t, config={**t.config, "note": "x" * length}) for t in map(make_trial, range(1000))]
    with controlled(f"sqlite:///{path}") as study:
        study.start(trials, "w")
        study.record([], [TrialResult(number=n, fence=1, state="finished", objective=1 / (n + 1)) for n in range(1000)])
    assert predict_bytes(trials[0], 1000, 0) == pytest.approx(path.stat().st_size, rel=0.3)


def test_the_objective_of_the_tests_is_reported():
    assert OBJECTIVE.cost_in(make_report(0, 1, 0.125)) == 0.125
