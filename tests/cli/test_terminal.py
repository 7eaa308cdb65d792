"""What a person sees and types: the line of a running study, words for values, versions, paths, files for others."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import program
from graft.files import write
from graft.launching.editing.administration import write_note
from graft.launching.enrolling import enrol
from graft.launching.placement import Placement
from graft.launching.planning.estimate import estimate_study, plan_packs
from graft.launching.progress_text import ProgressText, bar, fit_line
from graft.plugins.families import families
from spaces import load
from spaces.errors import StudyError
from spaces.progress import Progress, TimeLeft
from storage import open_reader
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.lives import SMALL, tiny, train

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


# -- the line of a running study -------------------------------------------------------------------------------------


def progress(ended: int, steps: int, planned: int = 4_800, best: float | None = 0.01234) -> Progress:
    return Progress(
        planned=planned,
        counts={"finished": ended, "running": 1_024},
        objective="square/bema/length=128",
        best=best,
        best_number=3_199 if best is not None else None,
        steps=steps,
        model_steps=steps,
        lane_room=steps,
    )


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_of_80_columns_has_the_count_the_rate_the_best_and_the_time_left():
    clock = Clock()
    text = ProgressText(clock)
    text.describe(progress(100, 10_000_000), 60)
    clock.now += 10
    study = replace(progress(1_234, 13_000_000), time_left=TimeLeft(30.6, 31.4))
    line = fit_line("set-complement", text.describe(study, 65), study, 80)
    assert len(line) <= 80
    assert "1,234/4,800" in line
    assert "300,000 steps/s" in line
    assert "best 0.01234" in line
    assert "ETA 0:31" in line
    assert line.startswith("set-complement")
    range_shown = text.describe(replace(study, time_left=TimeLeft(70.0, 3700.0)))
    assert range_shown.endswith("ETA 1:10 to 1:01:40")


def test_a_long_trial_shows_its_steps_while_none_has_ended():
    clock = Clock()
    text = ProgressText(clock)
    text.describe(progress(0, 0, 39, None))
    clock.now += 20
    assert text.describe(progress(0, 640, 39, None)) == "0/39 trials, 1,024 lanes, 640 steps, 32 model-steps/s"


@given(
    name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=100),
    ended=st.integers(0, 10**9), more=st.integers(0, 10**9), steps=st.integers(0, 10**15), width=st.integers(40, 250),
)  # fmt: skip
def test_every_line_fits_and_keeps_the_count(name: str, ended: int, more: int, steps: int, width: int):
    clock = Clock()
    text = ProgressText(clock)
    text.describe(progress(0, 0, ended + more))
    clock.now += 7
    study = progress(ended, steps, ended + more)
    line = fit_line(name, text.describe(study, width - min(len(name), 20) - 1), study, width)
    assert len(line) <= width
    assert f"{ended:,}/{ended + more:,}"[: width - 9] in line


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 60))
def test_a_bar_has_its_width(done: int, planned: int, width: int):
    assert len(bar(done, planned, width)) == width


# -- words -----------------------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("search", program())]
    while waiting:
        name, entry = waiting.pop()
        by_name[name] = entry
        waiting += [(f"{name} {inner}", command) for inner, command in getattr(entry, "commands", {}).items()]
    return by_name


def test_every_value_has_a_word_and_no_flag_has_one():
    for name, command in commands().items():
        for parameter in command.params:
            is_choice = parameter.type_descriptor.is_choice
            assert is_choice or parameter.metavar is not None, f"{name} {parameter.name}"
            assert not (getattr(parameter, "is_flag", False) and parameter.metavar), f"{name} {parameter.name}"


@pytest.mark.long
@pytest.mark.parametrize("module", ["graft", "graft_search"])
def test_the_program_is_a_module_and_says_its_version(module: str, tmp_path: Path):
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert re.fullmatch(r"graft \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.long
def test_a_shell_completes_commands(tmp_path: Path):
    import os

    environment = {**os.environ, "_SEARCH_COMPLETE": "complete_bash", "COMP_WORDS": "search stu", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "graft_search"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.stdout.split() == ["studies"], done.stderr


# -- files and people ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("none/prior.npz", "none/prior.npz: the folder none does not exist"),
        (".", ". is a folder; name a file in it"),
        ("prior.npz", "prior.npz exists; overwrite it with --force, or name another file"),
    ],
)
def test_a_prior_is_learnt_only_if_it_can_be_written(
    run: Run, tmp_path: Path, output: str, message: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "prior.npz").write_text("of yesterday")
    monkeypatch.setattr("graft.launching.planning.learning.collect_sources", lambda urls, table: pytest.fail("learns"))
    assert run("learn", "-o", output) == (2, "", f"error: {message}\n")
    assert (tmp_path / "prior.npz").read_text() == "of yesterday"


def test_a_prior_whose_file_cannot_be_made_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch):
    source = SimpleNamespace(configs=[{}], task="add")
    monkeypatch.setattr("graft.launching.planning.learning.collect_sources", lambda urls, table: [source])
    monkeypatch.setattr("search.samplers._prior.learn_prior", lambda sources: None)
    monkeypatch.setattr("search.samplers._prior.write_prior", lambda prior, path: path.write_bytes(b""))
    status, _, error = run("learn", "-o", "/proc/prior.npz")
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("error: /proc/prior.npz cannot be written: ")


def test_a_user_without_a_name_reveals_by_a_number(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse() -> str:
        raise KeyError("getpwuid(): uid not found")

    people = list[str]()
    monkeypatch.setattr("getpass.getuser", refuse)
    monkeypatch.setattr("storage.reveal_study", lambda url, study, *, person, version: people.append(person))
    report = SimpleNamespace(sentences=lambda: ["confirmed"])
    reports = SimpleNamespace(read_claim_report=lambda reader, study: report)
    monkeypatch.setitem(sys.modules, "graft.report.claims", reports)  # its packages take seconds to import
    enrol(f"sqlite:///{tmp_path}/graft.db", "tiny", tiny())
    assert run("reveal", "tiny") == (0, "confirmed\n", "")
    assert people == [str(os.getuid())]


def test_what_others_wrote_of_a_study_is_printed_on_one_line_without_codes(run: Run, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    write_note(url, "tiny", "seen\x1b]0;title\x07\nstate finished")
    for arguments in (("status", "tiny"), ("status", "tiny", "--watch")):
        status, out, error = run(*arguments)
        assert status == 0, error
        assert "seen ]0;title state finished" in out
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", out)


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(url: str) -> str:
    enrol(url, "tiny", tiny(model__scorer="{choice: [softmax, {ssa: {n: 'uniform(1, 2)'}}]}", search__trials="12"))
    train(url)
    return url


def test_any_path_filters_and_sorts(filled: str):
    """What is drawn, what is the same in all, a plug-in by its name, and what only some trials have."""
    with open_reader(filled) as reader:
        every = reader.study("tiny").trials()
        rates = every.select(
            pl.col("params").str.json_path_match("$['optimizer.learning_rate']").cast(float)
        ).to_series()
        rows = reader.study("tiny").trials(where="optimizer.learning_rate > 0.01", sort="optimizer.learning_rate DESC")
        assert (
            rows["number"].to_list()
            == every["number"]
            .gather(rates.arg_sort(descending=True))
            .filter(rates.sort(descending=True) > 0.01)
            .to_list()
        )
        assert reader.study("tiny").trials(where="model.width = 8 AND training.batch = 8").height == 12
        assert reader.study("tiny").trials(where="model.width = 9").is_empty()
        ssa = reader.study("tiny").trials(where="model.scorer = 'ssa'")
        assert 0 < ssa.height < 12
        assert set(ssa["scorer"]) == {"ssa"}
        assert reader.study("tiny").trials(where="model.scorer.n >= 1")["number"].to_list() == ssa["number"].to_list()
        assert reader.study("tiny").trials(where="task.name = 'set_complement'").height == 12
        assert reader.study("tiny").trials(where="error = 'model.width' OR steps > 0").height == 12
        with pytest.raises(StudyError, match=r"'optimizer\.rate' is no value of the study's trials, did you mean"):
            reader.study("tiny").trials(where="optimizer.rate > 1")


def test_an_unknown_path_is_one_line(run: Run, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    train(url)
    status, out, error = run("trials", "tiny", "--sort", "optimizer.learning_rat")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "did you mean" in error or "optimizer.learning_rate" in error
    status, out, _ = run("trials", "tiny", "--sort", "optimizer.learning_rate", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    rates = [float(row["params.optimizer.learning_rate"]) for row in rows]
    assert rates == sorted(rates)


# -- files for others ------------------------------------------------------------------------------------------------


def test_texts_that_look_like_formulas_are_harmless_in_a_csv():
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "plain", "a=b", None, ""]
    frame = pl.DataFrame({"error": texts, "value": [-1.5] * len(texts)})
    buffer = io.BytesIO()
    write(frame, "csv", buffer)
    rows = list(csv.reader(io.StringIO(buffer.getvalue().decode())))[1:]
    expected = ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "plain", "a=b", "", ""]
    assert [row[0] for row in rows] == expected
    assert {row[1] for row in rows} == {"-1.5"}
    buffer = io.BytesIO()
    write(frame, "json", buffer)
    assert pl.read_json(io.BytesIO(buffer.getvalue()))["error"].to_list() == texts


# -- a dry run -------------------------------------------------------------------------------------------------------


def test_an_estimate_begins_no_pack_after_its_time(monkeypatch: pytest.MonkeyPatch):
    """One pack is timed however little time there is; what it is doing is said before each."""
    said: list[str] = []
    timed: list[int] = []
    now = [0.0]

    def take_seconds(trial: Any, *, width: int, device: str, seconds: float) -> float:
        timed.append(width)
        now[0] += 6.0
        return 100.0

    monkeypatch.setattr("graft.launching.planning.estimate.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("workers.engine.speed.timing.model_steps_per_second", take_seconds)
    space = load(SPACE, families(), SMALL | {"search.trials": "64", "training.pad_shapes": "false"})
    plans = plan_packs(estimate_study(space), Placement(executor="inline", device="cpu"), said.append, seconds=10.0)
    assert len(plans) == len(timed) == 2
    assert [line.split(" of ")[0] for line in said] == ["timing pack 1", "timing pack 2"]


@pytest.mark.slow
def test_the_largest_packaged_space_is_estimated_within_twenty_seconds(tmp_path: Path):
    command = [sys.executable, "-m", "graft_search", "launch", "set_complement", "--dry-run", "--device", "cpu"]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert time.perf_counter() - started < 20
    assert "time " in done.stdout
    assert not list(tmp_path.iterdir())
