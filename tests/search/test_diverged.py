"""What diverged in an experiment: counted by arm, with its steps and settings, on studies made by hand."""

from __future__ import annotations

import json

import pytest

from graft.report import study as study_report
from graft.report.data import StudyData
from graft.report.rendering.document import Document, Heading, Paragraph, Table
from search.analysis.arms.divergence import compare_settings, count_lost, list_lost
from spaces.records import State
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame

pytestmark = pytest.mark.fast

REASON = "the training loss was not finite at step {}"
ENDINGS: dict[str, list[tuple[float, State, int]]] = {
    "softmax": [(0.001, "finished", 100), (0.01, "finished", 100), (0.1, "diverged", 40), (0.2, "diverged", 7)],
    "ssa": [(0.001, "finished", 100), (0.01, "finished", 100), (0.1, "finished", 100), (0.2, "failed", 3)],
    "average": [(0.001, "finished", 100), (0.01, "pruned", 50), (0.1, "running", 20), (0.2, "finished", 100)],
}
"""Arm -> learning rate, state and steps of the trial of each seed."""


def experiment(endings: dict[str, list[tuple[float, State, int]]]) -> StudyData:
    rows = [
        trial_row(
            number,
            0,
            state,
            1.0 if state == "finished" else None,
            steps=steps,
            error=REASON.format(steps) if state in ("diverged", "failed") else None,
            params={"arm": arm, "configuration": 0, "seed": seed, "optimizer.learning_rate": rate, "task.chance": 0.5},
        )
        for number, (arm, seed, (rate, state, steps)) in enumerate(
            (arm, seed, ending) for arm, by_seed in endings.items() for seed, ending in enumerate(by_seed)
        )
    ]
    return study_data(study_row(objective="mse/raw"), trials_frame(rows), metrics_frame([]))


def tables(page: Document) -> dict[str, Table]:
    return {block.caption: block for block in page.blocks if isinstance(block, Table)}


def test_lost_trials_are_counted_by_arm_with_their_steps() -> None:
    assert count_lost(experiment(ENDINGS).trials).rows() == [
        ("softmax", 4, 2, 0, 7, 40),
        ("ssa", 4, 0, 1, 3, 3),
        ("average", 2, 0, 0, None, None),
    ]


def test_settings_of_lost_trials_are_told_from_those_that_finished() -> None:
    trials = experiment(ENDINGS).trials
    assert compare_settings(trials).rows() == [
        ("softmax", "optimizer.learning_rate", 0.1, 0.2, 0.001, 0.01),
        ("ssa", "optimizer.learning_rate", 0.2, 0.2, 0.001, 0.1),
    ]
    lost = list_lost(trials)
    assert lost["number"].to_list() == [2, 3, 7]
    assert lost["error"][0] == REASON.format(40)
    # What is the same in all trials, and what says which trial it is, is no setting.
    assert lost["settings"].to_list() == [json.dumps({"optimizer.learning_rate": rate}) for rate in (0.1, 0.2, 0.2)]


@pytest.mark.long
def test_the_report_tells_what_diverged() -> None:
    page = study_report.document(experiment(ENDINGS))
    texts = [block.text for block in page.blocks if isinstance(block, Paragraph)]
    assert "Of 4 trials of softmax 2 diverged, between steps 7 and 40." in texts
    assert "Of 4 trials of ssa 1 failed, at step 3." in texts
    assert not any("trials of average" in text for text in texts)
    by_caption = tables(page)
    assert by_caption["Trials that ended without a result, of all that ended"].rows[0] == [
        "softmax",
        "4",
        "2",
        "0",
        "7",
        "40",
    ]
    [row, *_] = by_caption["Trials that diverged or failed"].rows
    assert row == ["softmax", "2", "2", "40", REASON.format(40), "optimizer.learning_rate 0.1"]


@pytest.mark.long
def test_nothing_is_said_where_nothing_diverged() -> None:
    finished: dict[str, list[tuple[float, State, int]]] = {"a": [(0.1, "finished", 9)], "b": [(0.1, "finished", 9)]}
    page = study_report.document(experiment(finished))
    assert "What diverged" not in [block.text for block in page.blocks if isinstance(block, Heading)]


def test_a_study_of_which_all_trials_diverged_says_so() -> None:
    lost: dict[str, list[tuple[float, State, int]]] = {"a": [(0.1, "diverged", 9)] * 2, "b": [(0.1, "diverged", 4)] * 2}
    page = study_report.document(experiment(lost))
    assert [block.text for block in page.blocks if isinstance(block, Heading)] == ["What diverged"]
    texts = [block.text for block in page.blocks if isinstance(block, Paragraph)]
    assert "Of 2 trials of a 2 diverged, at step 9." in texts
    assert any("No trial has ended with a result yet" in text for text in texts)


def test_of_many_only_the_first_are_listed() -> None:
    many: dict[str, list[tuple[float, State, int]]] = {"a": [(0.1, "diverged", step) for step in range(1, 31)]}
    page = study_report.document(experiment(many))
    assert len(tables(page)["Trials that diverged or failed"].rows) == 20
    assert any(isinstance(block, Paragraph) and block.text == "These are the first 20 of 30." for block in page.blocks)
