"""What a database knows of a task: `search advise TASK`, and in short a dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import graft
from storage.peeking import may_know_task
from tests.support import studies
from tests.support.databases import raw
from tests.support.inside import called

SCHEMA = Path(graft.__file__).parents[1] / "docs" / "schemas" / "advise-task.json"
SPACE = """
study: drawn
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 4, value_width: 8}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-4, -1)}
averaging: none
training: {steps: 20, validate_every: 10}
search: {trials: 60, seed: 3, objective: {minimize: tvd/raw, at: last}}
"""
ARMS = "seeds: 6\narms: {small: {training.batch: 16}, large: {training.batch: 32}}\n"
SEEDS = SPACE.replace("drawn", "repeated").replace("10 ** uniform(-4, -1)", "0.01").replace("trials: 60, ", "") + ARMS

Search = Callable[..., str]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    Path("drawn.yaml").write_text(SPACE)
    Path("repeated.yaml").write_text(SEEDS)

    def run(*arguments: str, status: int = 0) -> str:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status, error
        if status:
            assert error.count("\n") == 1
        return out if not status else error

    return run


@pytest.mark.long
def test_what_is_known_of_a_task_is_told_at_length_and_in_short(search: Search) -> None:
    for name in ("drawn", "repeated"):
        search("launch", f"{name}.yaml", "--device", "cpu", "--workers", "1")
    advice = json.loads(search("advise", "set_complement", "--format", "json"))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(advice)
    [setting] = advice["settings"]
    assert (setting["trials"], setting["random"], setting["studies"]) == (72, 60, ["drawn", "repeated"])
    assert (setting["noise"]["configurations"], setting["noise"]["trials"]) == (2, 12)
    values = dict(raw("sqlite:///graft.db", "SELECT objective, count(*) FROM trials WHERE study_id = 1 GROUP BY 1"))
    assert setting["best"][0]["expected"] == pytest.approx(sum(map(float, values)) / 60)
    assert [best["expected"] is None for best in setting["best"]] == [False, False, False, True, True]
    [rate] = advice["knobs"]
    assert (rate["path"], rate["is_told"], rate["winners"]) == ("optimizer.learning_rate", True, 6)
    text = search("advise", "set_complement", "--difference", "0.125")
    assert (
        "set_complement (length 4, vocabulary 9), model minimal, minimize tvd/raw (last), 20 steps: 72 trials" in text
    )
    assert "at level 0.05: 0.125: " in text
    assert repr(graft.open("graft.db").advise("set_complement", 0.125)) == text.rstrip("\n")
    lines = search("launch", "drawn.yaml", "--dry-run", "--device", "h100").splitlines()
    known = [line.removeprefix("known").strip() for line in lines if line.startswith("known ")]
    assert len(known) == 3
    assert known[0].startswith("72 trials of this setting; the best of 60 random ones is 0.")
    assert known[2].startswith("the best tenth had optimizer.learning_rate 0.")
    shape = json.loads(search("launch", "drawn.yaml", "--dry-run", "--device", "h100", "--format", "json"))
    assert shape["known"] == known
    other = search("launch", "drawn.yaml", "--dry-run", "--device", "h100", "--steps", "30")
    assert "72 trials of set_complement in other settings: search advise set_complement" in other
    # A task without trials learns from its kind, and one of another kind from nothing.
    assert search("advise", "language").startswith(
        "language has no trials here; of its family (NextToken): set_complement\n"
    )
    assert "no trial of affine, or of a task of its family, has ended" in search("advise", "affine", status=2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set_complemen"], "no task, did you mean 'set_complement'?"),
        (["set_complement", "--format", "csv"], "must be one of table, json"),
        (["set_complement", "--difference", "0"], "difference 0: must be a number above 0"),
        (["set_complement", "--difference", "inf"], "difference inf: must be a number above 0"),
        (["drawn.yaml", "--difference", "1"], "--difference goes with a task"),
        (["drawn.yaml"], "has no claim"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["mano", "--storage", "nowhere.db"], "there is no such database; `search launch` creates one"),
    ],
)
def test_bad_input_is_one_line(search: Search, tmp_path: Path, arguments: list[str], message: str) -> None:
    with studies.running(f"sqlite:///{tmp_path}/graft.db"):
        assert message in search("advise", *arguments, status=2)


def test_interim_results_of_a_claim_are_not_told(search: Search) -> None:
    Path("claimed.yaml").write_text(SEEDS + "claim: {arm: small, than: large, difference: 0.1}\n")
    search("launch", "claimed.yaml", "--device", "cpu", "--workers", "1")
    assert "12 trials of repeated" in search("advise", "set_complement")
    raw("sqlite:///graft.db", "UPDATE studies SET state = 'stopped'")
    assert "no trial of set_complement" in search("advise", "set_complement", status=2)
    assert "known" not in search("launch", "drawn.yaml", "--dry-run", "--device", "h100")


def test_trials_are_not_random_where_a_stopping_policy_ended_some_and_then_left_the_space(search: Search) -> None:
    def count_random() -> int:
        [setting] = json.loads(search("advise", "set_complement", "--format", "json"))["settings"]
        return setting["random"]

    search("launch", "drawn.yaml", "--device", "cpu", "--workers", "1", "--trials", "4")
    assert count_random() == 4
    raw("sqlite:///graft.db", "UPDATE trials SET state = 'pruned' WHERE number = 0")
    assert count_random() == 0


def test_a_database_is_asked_without_its_libraries_whether_it_may_know_a_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a b%.db"
    assert not may_know_task(url, "demo")
    with studies.running(url):
        assert may_know_task(url, "demo")
        assert not may_know_task(url, "nothing of this name")
    (tmp_path / "torn.db").write_text("no database")
    assert may_know_task(f"sqlite:///{tmp_path}/torn.db", "demo")
    assert may_know_task("postgresql://nowhere/db", "demo")
    assert [path.name for path in tmp_path.iterdir() if "nothing" in path.name] == []


@pytest.mark.long
def test_a_dry_run_of_a_database_that_knows_nothing_imports_nothing_for_it(search: Search, tmp_path: Path) -> None:
    with studies.running(f"sqlite:///{tmp_path}/graft.db"):
        pass
    code = """
import sys
from cli.main import main
sys.argv = ["search", "launch", "drawn.yaml", "--dry-run", "--device", "h100"]
try:
    main()
except SystemExit:
    pass
heavy = {"scipy", "sqlalchemy", "polars", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)
