"""A table of trials that answers in place of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import graft
from graft.launching.enrolling import enrol
from graft.launching.planning.learning import sources_of_database
from graft.launching.surrogate import TrialTable
from spaces.errors import StudyError
from tests.support.inside import called
from tests.support.lives import draws, tiny, train

SPACE = """
study: kept
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 4, value_width: 8, scorer: {choice: [softmax, average]}}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-4, -1)}
averaging: none
training: {steps: 40, validate_every: 10}
search: {trials: 60, seed: 3, history: full, objective: {minimize: tvd/raw, at: last}}
"""


def write_table(folder: Path) -> None:
    """Write a table of 60 trials whose objective follows from the learning rate; the last three diverged."""
    with graft.Space(SPACE).load() as space:
        trials = space.search.sampler.begin(space, []).ask(range(60))
    rows = [
        {
            "task": "set_complement", "slice": 0, "number": trial.number, "seed": trial.seed, "space": SPACE,
            "steps": 40, "state": "diverged" if trial.number > 56 else "finished", "numerics": 1, "step_kind": "native",
            "model.scorer": trial.config["model"]["scorer"]["name"],
            "optimizer.learning_rate": trial.config["optimizer"]["learning_rate"],
        }
        for trial in trials
    ]  # fmt: skip
    pl.DataFrame(rows).write_parquet(folder / "trials.parquet")
    values = [
        {
            "task": "set_complement", "slice": 0, "number": trial.number, "step": step, "name": "tvd", "variant": "raw",
            "condition": "", "value": trial.draws["optimizer.learning_rate"] + 1 / step,
        }
        for trial in trials[:57]
        for step in (10, 20, 30, 40)
    ]  # fmt: skip
    pl.DataFrame(values).write_parquet(folder / "metrics.parquet")


@pytest.mark.long
def test_a_launch_is_answered_and_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("new.yaml").write_text(SPACE.replace("seed: 3", "seed: 4").replace("study: kept", "study: new"))

    def search(*arguments: str, status: int = 0) -> str:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status, error
        return out + error

    search("launch", "new.yaml", "--surrogate", str(tmp_path))
    study = graft.open("sqlite:///graft.db")["new"]
    trials = study.trials()
    finished = trials.filter(pl.col("state") == "finished")
    assert trials["state"].is_in(["finished", "diverged"]).all()
    assert finished.height > 50
    assert finished.select(pl.corr("objective", "params.optimizer.learning_rate", method="spearman")).item() > 0.95
    assert set(trials["step_kind"]) == {"surrogate"}
    search("report", "study", "new", "-o", "new.md")
    assert "60 of its trials are answers of a table's model, not trainings" in Path("new.md").read_text()
    refused = search("resume", "new", "--trials", "61", "--device", "cpu", status=2)
    assert "surrogate steps, now native ones" in refused
    search("resume", "new", "--trials", "61", "--surrogate", str(tmp_path))
    assert study.trials().height == 61


def test_a_table_is_assessed_on_held_out_trials(tmp_path: Path) -> None:
    write_table(tmp_path)
    fit = TrialTable(tmp_path).assess("set_complement")
    assert fit.trials == 60
    assert fit.rank_correlation > 0.75  # three trials diverge by chance, and count as the worst


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("vocabulary: 9", "vocabulary: 10"), "the table has no trials of this task"),
        (("validate_every: 10", "validate_every: 8"), "are validated at 10, 20, 30, 40"),
        (("seed: 3", "seed: 3, stopping: {population: {every: 10}}"), "no table knows how a copy goes on"),
    ],
)
def test_what_a_table_cannot_answer_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: tuple[str, str],
    message: str,
) -> None:
    write_table(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert change[0] in SPACE
    Path("new.yaml").write_text(SPACE.replace(*change).replace("value_width: 8", "value_width: 9"))
    status, _, error = called(monkeypatch, capfd, "launch", "new.yaml", "--surrogate", str(tmp_path))
    assert status == 2
    assert message in error


def test_a_folder_without_a_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is no table of trials"):
        _ = TrialTable(tmp_path).tasks


def test_what_is_not_feasible_has_no_cost_for_a_prior(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bounded.db"
    enrol(url, "tiny", tiny(search__trials="12", search__feasible="tvd/raw >= -1"))
    train(url)
    [source] = sources_of_database(url)
    expected = [sum(values.values()) <= 1 for _, values in draws(url)]
    assert len({*expected}) == 2
    assert np.isfinite(source.costs).tolist() == expected


@pytest.mark.long
def test_a_prior_is_learnt_from_a_database_and_a_table_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A study that was answered from a table is not learnt from."""
    write_table(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("new.yaml").write_text(SPACE.replace("study: kept", "study: new"))

    def search(*arguments: str, status: int = 0) -> str:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status, error
        return out + error

    search("launch", "new.yaml", "--surrogate", str(tmp_path))
    assert "nothing to learn from" in search("learn", "--from", "sqlite:///graft.db", "-o", "prior.npz", status=2)
    search("launch", "new.yaml", "--study", "trained", "--trials", "8", "--device", "cpu", "--workers", "1")
    output = search("learn", "--from", "sqlite:///graft.db", "--table", str(tmp_path), "-o", "prior.npz")
    assert "learnt from 68 trials of trained, set_complement" in output
    sampler = f"search.sampler={{learned: {{prior: {tmp_path}/prior.npz}}}}"
    search("launch", "new.yaml", "--study", "warm", "--set", sampler, "--surrogate", str(tmp_path))
    study = graft.open("sqlite:///graft.db")
    best = {name: study[name].trials().sort("number")["objective"].head(8).min() for name in ("new", "warm")}
    assert best["warm"] <= best["new"]
