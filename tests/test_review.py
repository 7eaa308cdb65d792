"""What is told of a space before it trains: what would fail at the first validation, and what is likely not meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graft.families import families
from graft.launching.review import review
from spaces import load, parse
from spaces.errors import SpaceError
from spaces.space import Space
from tests.inside import called
from tests.launches import SPACE

QUICK = {"search.trials": "4", "search.group": "2"}


def tiny(**overrides: str) -> Space:
    return load(SPACE, families(), QUICK | {path.replace("__", "."): value for path, value in overrides.items()})


def test_a_space_that_is_as_it_was_meant_gets_no_note():
    assert review(tiny()) == []
    assert review(tiny(), "cpu") == []


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("{minimize: tvd/ema}", "'ema' is no variant that trials of this averaging have.* choose one of raw, bema"),
        ("{minimize: tdv/bema}", "'tdv/bema' is no metric that a validation reports, did you mean"),
        ("{minimize: tvd/bema/length=9}", "'tvd/bema/length=9' is no metric that a validation reports"),
    ],
)
def test_an_objective_that_no_validation_reports_is_refused(objective: str, words: str):
    with pytest.raises(SpaceError, match=rf"^tiny: search\.objective: {words}"):
        review(tiny(search__objective=objective))


def test_an_average_that_only_some_trials_keep_is_no_error():
    assert review(tiny(averaging="{choice: [none, bema]}")) == [
        "1 of the 2 structures looked at will not report the objective tvd/bema"
    ]


def test_a_warm_up_beyond_the_end_is_told_with_its_share():
    space = tiny(optimizer__schedule="{linear: {warmup: 'int(1, 100)'}}", training__steps="75")
    [note] = review(space)
    assert note.startswith("about ")
    share = float(note.split()[1])
    assert 10 < share < 45, "26 of 100 warm-ups are 75 or more"
    assert "a warm-up (optimizer.schedule.warmup) that lasts to the end of training or beyond" in note
    assert review(tiny(optimizer__schedule="{linear: {warmup: 10}}")) == []
    [note] = review(tiny(optimizer__schedule="{linear: {warmup: 90}}", training__steps="90"))
    assert note.startswith("all trials have a warm-up")


def test_one_validation_is_told():
    [note] = review(tiny(training__validate_every="90"))
    assert note.startswith("all trials have one validation, at the end")


def test_a_trial_larger_than_memory_is_refused_where_it_would_run_and_told_elsewhere():
    large = tiny(group__vocabulary="1_000_000_000", model__value_width="8", model__width="8")
    words = r"one trial needs \d+ GB for its parameters alone, and cpu has .* free \(where task\.length = "
    with pytest.raises(SpaceError, match=f"^tiny: {words}"):
        review(large, "cpu")
    [note] = review(large)
    assert note.startswith("one trial needs")


def test_the_parts_of_an_experiment_are_named():
    text = Path(SPACE).read_text() + "arms:\n  slow: {training.validate_every: 500}\n  fast: {}\nseeds: 2\n"
    [note] = review(parse(text, "arms", families(), {"search.trials": "1", "search.group": "1"}))
    assert note.startswith("arm slow: all trials have one validation")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_launch_is_refused_before_anything_is_written(run: Run, tmp_path: Path, dry: list[str]):
    status, out, error = run("launch", SPACE, "--set", "search.objective={minimize: tvd/ema}", *dry)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: tiny: search.objective: 'ema' is no variant")
    assert not list(tmp_path.iterdir())


def test_a_check_tells_and_a_launch_tells_once(run: Run, tmp_path: Path):
    file = tmp_path / "once.yaml"
    file.write_text(Path(SPACE).read_text().replace("validate_every: 20", "validate_every: 90"))
    status, out, error = run("space", "check", file)
    assert (status, error.count("note: all trials have one validation")) == (0, 1)
    assert "good" in out
    small = ("--trials=1", "--steps=4", "--workers=1", "--device=cpu")
    assert run("launch", file, *small)[2].startswith("note: all trials have one validation")
    assert "note: all trials" not in run("launch", file, *small)[2]
