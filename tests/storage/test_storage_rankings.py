"""What the database ranks: the contenders for a front, the best non-linearities, the trials of a sample."""

from __future__ import annotations

import itertools

import pytest

from graft.stored.trials import read_front
from graft.web.charts.sampling import read_sample
from spaces.records import TrialResult
from spaces.settings import Direction
from storage import open_reader
from tests.support.databases import controlled, make_trial, raw
from tests.support.nonlinearities import add_architectures

TRIALS = range(40)
TASKS = ("a'b", "copy")
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")


def result(number: int) -> TrialResult:
    """Few values, so that many are equal; some trials lack the second objective, or break a constraint."""
    second = None if number % 11 == 0 else float(number * 7 % 5)
    broken = {"width <= 8": 1.0 if number % 13 == 0 else -1.0}
    return TrialResult(
        number=number,
        fence=1,
        state="finished",
        objective=float(number * 3 % 7),
        second_objective=second,
        constraints=broken,
    )


@pytest.fixture
def ranked(url: str) -> str:
    """Return a study most of whose trials have ended, each with two learned non-linearities, on one of two tasks."""
    with controlled(url) as study:
        study.start([make_trial(number) for number in TRIALS], "w")
        study.end([result(number) for number in TRIALS[:-4]])
    rows = [(number, TASKS[number % 2], kind, [0.0, number]) for number in TRIALS for kind in ("mlp", "attention")]
    add_architectures(url, study.id, rows)
    return url


def test_the_front_is_among_the_contenders(ranked: str):
    known = [
        (trial.number, trial.objective or 0.0, trial.second_objective)
        for trial in map(result, TRIALS[:-4])
        if trial.second_objective is not None and trial.number % 13
    ]
    for directions in itertools.product(DIRECTIONS, repeat=2):
        raw(ranked, f"UPDATE studies SET direction = '{directions[0]}', second_objective = '{directions[1]} width'")
        signs = [1 if direction == "minimize" else -1 for direction in directions]
        losses = {number: (signs[0] * first, signs[1] * second) for number, first, second in known}
        beaten = {
            number
            for number, other in itertools.permutations(losses, 2)
            if losses[other] != losses[number]
            and all(a <= b for a, b in zip(losses[other], losses[number], strict=True))
        }
        far_behind = {
            number
            for number, other in itertools.permutations(losses, 2)
            if all(a < b for a, b in zip(losses[other], losses[number], strict=True))
        }
        with open_reader(ranked) as reader:
            study = reader.study("study")
            assert set(read_front(study)["number"]) == losses.keys() - beaten
            assert set(study.contenders()["number"]) <= losses.keys() - far_behind


@pytest.mark.parametrize("directions", [{}, {TASKS[0]: "maximize", TASKS[1]: "minimize"}])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_best_non_linearities_are_those_of_the_best_trials(
    ranked: str, direction: Direction, directions: dict[str, Direction]
):
    raw(ranked, f"UPDATE studies SET direction = '{direction}'")
    with open_reader(ranked) as reader:
        study = reader.study("study")
        every = study.architectures.read()
        best = study.architectures.read_best(3, directions)
        assert study.architectures.count() == every.height == 2 * len(TRIALS)
    expected: set[tuple[str, int]] = set()
    for task in TASKS:
        sign = -1 if directions.get(task, direction) == "maximize" else 1
        scores = [
            (sign * (result(number).objective or 0.0), number) for number in TRIALS[:-4] if TASKS[number % 2] == task
        ]
        expected |= {(task, number) for _, number in sorted(scores)[:3]}
    for component in ("mlp", "attention"):
        assert set(best.filter(component=component).select("task", "number").iter_rows()) == expected
    assert best.equals(every.join(best.select("id"), on="id", how="semi"))


def test_a_sample_is_drawn_by_a_hash_and_has_the_best(ranked: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("graft.web.charts.sampling.MOST", 10)
    monkeypatch.setattr("graft.web.charts.sampling._BEST", 3)
    raw(ranked, "DELETE FROM architectures")
    raw(ranked, "DELETE FROM trials WHERE number = 8")
    with open_reader(ranked) as reader:
        sample = read_sample(reader.study("study"))
        everything = reader.study("study").trials("objective IS NOT NULL AND feasible IS NOT FALSE")
        best = reader.study("study").trials(top=3)["number"].to_list()
    assert sample.every == 4
    scored = set(everything["number"])
    drawn = {number for number in range(40) if number * 2_654_435_761 // 65_536 % 4 == 0}
    assert {number % 4 for number in drawn} == {0, 1, 2, 3}, "of four arms each has some"
    assert sample.trials["number"].to_list() == sorted((scored & drawn) | set(best))
    feasible = sorted((trial.objective, trial.number) for trial in map(result, sorted(scored)) if trial.number % 13)
    assert best == [number for _, number in feasible[:3]]
