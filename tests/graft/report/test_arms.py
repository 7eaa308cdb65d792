"""The arms of experiments ranked and compared while some of their trials still run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graft.report.arms import compare_two, rank_arms, read_comparison
from spaces.errors import StudyError
from spaces.records import Trial, TrialResult
from spaces.settings import Objective
from storage import NewStudy, Store, open_reader, open_store

pytestmark = pytest.mark.fast

OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="raw")
CONFIG = {
    "task": {"name": "set_complement", "length": 4},
    "model": {"name": "minimal", "scorer": {"name": "softmax"}},
    "training": {"validation_batch": 8},
}
Run = tuple[Mapping[str, Any], float | None]
"""The params of a trial, and its objective; None while it runs."""


def run(arm: str, seed: int, objective: float | None, configuration: int = 0) -> Run:
    return {"arm": arm, "configuration": configuration, "seed": seed}, objective


DONE = [run(arm, seed, level + seed / 100) for arm, level in (("base", 0.5), ("short", 0.3)) for seed in (0, 1)]
TUNED = [
    run("base", 0, 0.1, 0), run("base", 1, None, 0), run("base", 0, 0.2, 1), run("base", 1, None, 1),
    run("short", 0, 0.4, 0), run("short", 1, 0.41, 0), run("short", 0, 0.6, 1), run("short", 1, None, 1),
]  # fmt: skip
"""No configuration of the first arm has ended with both seeds."""
CONFIRMING = [
    *(run("base", 0, 0.2 + configuration, configuration) for configuration in (0, 1)),
    *(({"arm": "base", "confirmed rank": 0, "seed": seed}, None) for seed in (1, 2)),
]
"""The chosen configuration trains again, from fresh seeds."""


def write(
    store: Store,
    name: str,
    runs: list[Run],
    seed: int = 0,
    space: str = "arms:",
    config: Mapping[str, Any] = CONFIG,
) -> None:
    facts: dict[str, Any] = {"space": space, "space_hash": "", "version": "0.2.0", "numerics": 1}
    new = NewStudy(name, objective=OBJECTIVE, seed=seed, trials=len(runs), **facts)
    study = store.take_control(store.create_study(new), policy="full", objective=OBJECTIVE)
    trials = [
        Trial(number=number, group=0, seed=number, draws={}, params=params, config=config, structure="")
        for number, (params, _) in enumerate(runs)
    ]
    study.start(trials, "worker")
    study.end(
        [
            TrialResult(number=number, fence=1, state="finished", objective=objective)
            for number, (_, objective) in enumerate(runs)
            if objective is not None
        ]
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/graft.db"


def test_an_experiment_that_runs_leaves_the_others_ranked(url: str) -> None:
    with open_store(url) as store:
        write(store, "confirming", CONFIRMING, seed=1)
        write(store, "tuned", TUNED)
        write(store, "done", DONE)
    with open_reader(url) as reader:
        board, studies = rank_arms(reader, "set_complement")
    assert studies == ["tuned", "done"]
    assert board.select("board", "arm", "finished").rows() == [
        (1, "done: short", 2), (1, "tuned: short", 2), (1, "done: base", 2),
    ]  # fmt: skip
    assert board["difference"].to_list() == [None, pytest.approx(0.1), pytest.approx(0.2)]


def test_experiments_whose_confirmations_all_run_have_no_ranking_yet(url: str) -> None:
    with open_store(url) as store:
        write(store, "confirming", CONFIRMING)
    with (
        open_reader(url) as reader,
        pytest.raises(StudyError, match="no arm of an experiment on set_complement has a result yet"),
    ):
        rank_arms(reader, "set_complement")


def test_two_arms_are_compared_whether_or_not_the_first_of_their_study_has_a_result(url: str) -> None:
    with open_store(url) as store:
        write(store, "tuned", TUNED)
        write(store, "done", DONE)
    with open_reader(url) as reader:
        row = compare_two(reader, "tuned:short", "done:base")
        assert (row["pairs"], row["difference"], row["against"]) == (2, pytest.approx(-0.1), pytest.approx(0.505))
        for pair in (("tuned:base", "tuned:short"), ("tuned:short", "tuned:base")):
            with pytest.raises(StudyError, match="one of them has no result yet"):
                compare_two(reader, *pair)


LAST = '{"search": {"objective": {"minimize": "tvd/raw", "at": "last"}}}'
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "last": ({"space": LAST}, "one search.objective.at, but these have done best, last last"),
    "seeded": ({"seed": 1}, "one search.seed, but these have done 0, seeded 1"),
    "longer": (
        {"config": CONFIG | {"task": {"name": "set_complement", "length": 8}}},
        "one task.length, but these have done 4, longer 8",
    ),
    "wordy": (
        {"config": CONFIG | {"task": {"name": "set_complement", "length": 4, "vocabulary": 9}}},
        "one task.vocabulary, but these have done none, wordy 9",
    ),
    "larger": (
        {"config": CONFIG | {"training": {"validation_batch": 16}}},
        "one training.validation_batch, but these have done 8, larger 16",
    ),
}
"""A study whose trials are no pairs with those of `done` -> its differences, and the refusal."""


def test_studies_whose_trials_are_no_pairs_are_not_joined(url: str) -> None:
    with open_store(url) as store:
        write(store, "done", DONE)
        for name, (changes, _) in OTHERS.items():
            write(store, name, DONE, **changes)
    with open_reader(url) as reader:
        board, studies = rank_arms(reader, "set_complement")
        assert studies == ["done", *OTHERS]
        assert board["board"].n_unique() == len(studies)
        for name, (_, refusal) in OTHERS.items():
            for comparing in (lambda other: read_comparison(reader, ["done", other], None),
                              lambda other: compare_two(reader, "done:base", f"{other}:base")):  # fmt: skip
                with pytest.raises(StudyError, match=f"studies to compare need {refusal}$"):
                    comparing(name)


def test_studies_are_pairs_whatever_the_steps_of_their_curricula(url: str) -> None:
    with open_store(url) as store:
        for name, every in (("slow", 2000), ("fast", 1000)):
            write(store, name, DONE, config=CONFIG | {"task": {"name": "affine", "curriculum_every": every}})
    with open_reader(url) as reader:
        assert compare_two(reader, "slow:base", "fast:base")["pairs"] == 2


def test_a_study_alone_on_its_board_may_be_called_like_one_of_its_arms(url: str) -> None:
    with open_store(url) as store:
        write(store, "short", DONE)
    with open_reader(url) as reader:
        board, studies = rank_arms(reader, "set_complement")
    assert (board["arm"].to_list(), studies) == (["short: short", "short: base"], ["short"])


def test_experiments_are_known_by_their_trials_however_their_spaces_are_written(url: str) -> None:
    with open_store(url) as store:
        write(store, "quoted", DONE, space='{"arms": {"base": null, "short": {}}}')
        write(store, "plain", [({"rate": 0.1}, 0.5)], space="model: {arms: 2}")
    with open_reader(url) as reader:
        assert rank_arms(reader, "set_complement")[1] == ["quoted"]


def test_the_only_arm_of_a_study_goes_by_the_name_of_the_study(url: str) -> None:
    """Its own name is the one that the study had when its space was written."""
    with open_store(url) as store:
        write(store, "done", DONE)
        write(store, "renamed", [run("only", seed, 0.1 + seed / 100) for seed in (0, 1)])
    with open_reader(url) as reader:
        board, _ = rank_arms(reader, "set_complement")
        assert board["arm"].to_list() == ["renamed", "done: short", "done: base"]
        for name in ("renamed", "renamed:only"):
            assert compare_two(reader, name, "done:base")["difference"] == pytest.approx(-0.4)
        with pytest.raises(StudyError, match=r"^done: 'done' is no arm; choose one of base, short$"):
            compare_two(reader, "renamed", "done")
        arms = read_comparison(reader, ["done", "renamed"], "renamed").differences()["arm"]
    assert arms.to_list() == ["renamed", "done: base", "done: short"]
