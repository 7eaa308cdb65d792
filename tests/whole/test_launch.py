"""Launching, stopping and going on; and everything that can be wrong with what a person types."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from storage import open_store
from tests.support.databases import raw
from tests.support.inside import Run, printing
from tests.support.launches import SPACE, check_complete, counts, ended, finished, running, search, states, wait_until
from workers.engine import step

LONG = ("launch", SPACE, "--steps", "1_000_000", "--set", "training.validate_every=20", "--workers", "2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the program inside this process, in an empty folder."""
    return printing(tmp_path, monkeypatch, capfd)


def contents(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def test_a_launch_of_a_finished_study_says_so_and_changes_nothing(here: Run, tmp_path: Path):
    launch = ("launch", SPACE, "--trials", "2", "--workers", "1")
    first = here(*launch)
    assert first[0].endswith("graft.db: new, 2 trials")
    assert first[-1].startswith("tiny: 2 finished of 2; best tvd/bema ")
    before = contents(tmp_path / "graft.db")
    for again in (launch, ("resume", "tiny")):
        [line] = here(*again)
        assert line.endswith("graft.db: finished, all 2 trials are done")
    assert contents(tmp_path / "graft.db") == before


def test_a_resumed_study_loads_its_steps_ahead_as_a_new_one_does(here: Run, monkeypatch: pytest.MonkeyPatch):
    here("launch", SPACE, "--trials", "1", "--steps", "1", "--workers", "1")
    begun: list[tuple[str, str]] = []
    monkeypatch.setattr(step, "begin_loading", lambda config, device: begun.append((config["model"]["name"], device)))
    here("resume", "tiny", "--trials", "2", "--workers", "1", "--device", "cpu")
    assert set(begun) == {("minimal", "cpu")}
    begun.clear()
    here("resume", "tiny")
    assert not begun, "a finished study trains nothing"


def test_a_taken_name_with_another_space_is_refused(here: Run, tmp_path: Path):
    here("launch", SPACE, "--trials", "2", "--workers", "1")
    before = contents(tmp_path / "graft.db")
    [line] = here("launch", SPACE, "--trials", "2", "--seed", "3", status=2)
    text = "study 'tiny' exists with another space (search.seed: nothing -> 3); give this one another name with --study"
    assert line == f"error: {text}, or resume the old one with `search resume tiny`"
    assert contents(tmp_path / "graft.db") == before


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_an_interrupted_launch_keeps_what_is_finished_and_resumes(tmp_path: Path, sent: signal.Signals):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, "launch", SPACE, "--workers", "2", "--pack", "4") as process:
        wait_until(lambda: finished(url) > 3)
        process.send_signal(sent)
        lines = ended(process, 130)
    assert lines[-1] == "stopped with everything kept; resume it with `search resume tiny`"
    stopped = states(url)
    assert stopped.keys() == {"finished", "queued"}
    assert f"tiny: {stopped['finished']} finished of 48" in lines[-2]
    assert raw(url, "SELECT state FROM studies") == [("stopped",)]
    search(tmp_path, "resume", "tiny")
    check_complete(url)


def test_a_second_interruption_leaves_at_once(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *LONG) as process:
        wait_until(lambda: counts(url).get("running", 0) > 0)
        assert process.stderr
        process.send_signal(signal.SIGINT)
        lines = iter(process.stderr.readline, "")
        assert any("press Ctrl-C again to leave at once" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert ended(process, 130)[-1].startswith("left at once; ")


@pytest.mark.long
def test_a_running_study_refuses_a_second_launch_and_is_stopped_from_elsewhere(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *LONG) as process:
        wait_until(lambda: counts(url).get("running", 0) > 0)
        [line] = search(tmp_path, *LONG, status=2)
        assert line.startswith(f"error: {tmp_path}/graft.db is being written by process {process.pid} on ")
        assert process.poll() is None
        [line] = search(tmp_path, "stop", "tiny")
        assert line == "tiny is asked to stop; resume it with `search resume tiny`"
        lines = ended(process, 0)
    assert lines[-1] == "stopped with everything kept; resume it with `search resume tiny`"
    assert states(url) == {"queued": 48}


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["missing.yaml"],
            "missing.yaml: no such file, and 'missing.yaml' is no packaged space; choose one of algorithmic/",
        ),
        (["."], "this is a directory; name the space file in it"),
        (["broken.yaml"], "broken.yaml:2: broken YAML"),
        (
            [SPACE, "--set", "model.scorer=nosuch"],
            "'nosuch' is no scorer; choose one of adaptive_temperature, average, ",
        ),
        ([SPACE, "--trials", "-1"], "search.trials: -1 must be an integer in [1, 1e+09]"),
        ([SPACE, "--trials", "0"], "search.trials: 0 must be an integer in [1, 1e+09]"),
        ([SPACE, "--steps", "0"], "training.steps: 0 must be an integer >= 1"),
        ([SPACE, "--set", "training.batch"], "--set training.batch: write path=value, for example"),
        ([SPACE, "--set", "nosuch.batch=1"], "'nosuch' is no section; choose one of study, plugins, group"),
        ([SPACE, "--executor", "slurm"], "--executor: 'slurm' must be one of auto, inline, processes, ray"),
        ([SPACE, "--device", "cuda:99"], "--device: 'cuda:99' is not on this machine"),
        ([SPACE, "--device", "nonsense"], "--device: 'nonsense' is not on this machine"),
        ([SPACE, "--device", "cpu", "--executor", "ray"], "--device: 'cpu' needs --executor inline"),
        ([SPACE, "--executor", "inline", "--ray-address", "auto"], "'auto' needs --executor ray"),
        ([SPACE, "--storage", "file/graft.db"], "file/graft.db: the folder "),
        ([SPACE, "--storage", "/proc/graft.db"], "/proc/graft.db: cannot write /proc/graft.db.lock"),
        ([SPACE, "--storage", "file"], "file: this file is not a Graft database"),
        ([SPACE, "--storage", "newer.db"], "newer.db has schema 9999, newer than the "),
        ([SPACE, "--storage", "mysql://host/database"], "mysql://... is not supported; use sqlite:///FILE or postgres"),
        ([SPACE, "--storage", "postgresql://me@127.0.0.1:1/graft"], "postgresql://me@127.0.0.1:1/graft: connection"),
        ([SPACE, "--ray-address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: "),
        ([], "Missing argument 'SPACE'; see `search launch --help`"),
        ([SPACE, "--trials", "many"], "Invalid value for '--trials'"),
        ([SPACE, "--workers", "0"], "Invalid value for '--workers'"),
        ([SPACE, "--nosuch"], "No such option: --nosuch; see `search launch --help`"),
    ],
    ids=lambda value: " ".join(value).replace(SPACE, "").strip() or "nothing" if isinstance(value, list) else "",
)
def test_what_cannot_be_launched_is_told_in_one_line(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[Any], words: str
):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-no-cluster")
    (tmp_path / "broken.yaml").write_text("study: [\n")
    (tmp_path / "file").write_text("not a database\n")
    if "newer.db" in arguments:
        open_store(f"sqlite:///{tmp_path}/newer.db").close()
        raw(f"sqlite:///{tmp_path}/newer.db", "UPDATE graft_version SET version_num = '9999'")
    *_, line = lines = here("launch", *arguments, status=2)
    assert line.startswith("error: ")
    assert words in line
    assert [text for text in lines if not text.endswith("new, 48 trials")] == [line]
    assert (tmp_path / "file").read_text() == "not a database\n"


def test_an_unknown_command_is_told_in_one_line_and_no_command_gets_help(here: Run):
    assert here("nosuch", status=2) == ["error: No such command 'nosuch'; see `search --help`"]
    assert "Usage: search" in here()[1]


def test_a_missing_ray_is_told_in_one_line(tmp_path: Path):
    lines = search(
        tmp_path, "launch", SPACE, "--executor", "ray", status=2, before="import sys; sys.modules['ray'] = None"
    )
    assert lines[-1] == "error: the ray executor needs Ray: pip install 'graft-search[ray]'"


@pytest.mark.parametrize(
    ("space", "trials"),
    [
        ("quick/set_complement", "64 trials in 1 group of up to 64"),
        pytest.param("set_complement", "260,000 trials in 260 groups of up to 1,000", marks=pytest.mark.long),
    ],
)
def test_a_dry_run_tells_packs_time_and_size_and_touches_nothing(here: Run, tmp_path: Path, space: str, trials: str):
    words = [line.split(maxsplit=1) for line in here("launch", space, "--dry-run")]
    fields = {word: text for word, text in words}  # noqa: C416
    assert [*fields] == ["study", "trials", "packs", "steps", "database", "width", "step", "evaluation", "rate", "time"]
    assert fields["trials"].startswith(trials)
    assert "structure" in fields["packs"]
    assert not list(tmp_path.iterdir())
