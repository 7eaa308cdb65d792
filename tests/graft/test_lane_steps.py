"""Lane utilisation: what workers tell of their lanes is in the database, exact to the last exchange."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.main import app
from graft.launching.enrolling import enrol, open_controller
from graft.plugins.families import families
from graft.stored.status import read_status
from search.steering.controller import Controller
from spaces import load
from spaces.errors import StorageError
from spaces.records import Offer
from storage import open_reader
from tests.support.databases import make_first_version, raw
from tests.support.launches import SPACE
from workers.pool import inline

pytestmark = pytest.mark.fast


def offer(worker: str, steps: int, room: int) -> Offer:
    """From a worker that wants nothing."""
    return Offer(worker=worker, lanes=0, structure="{}", host="here", device="cpu", steps=steps, room=room)


@contextmanager
def running(url: str) -> Generator[Controller]:
    """Yield the study `tiny`, written down if it is new, and run by this process."""
    enrol(url, "tiny", load(SPACE, families(), {"search.trials": "6", "search.group": "3"}))
    study = open_controller(url, "tiny")
    try:
        yield study
    finally:
        study.close()


def stored(url: str) -> dict[str, tuple[int, int]]:
    """Worker -> steps and room."""
    with open_reader(url) as reader:
        return {
            worker: (steps, room)
            for worker, steps, room in reader.study("tiny").workers()["id", "steps", "room"].rows()
        }


def test_the_counts_of_every_worker_are_exact_when_a_run_ends(url: str):
    with running(url) as study:
        for steps in (5, 7, 0, 9):
            study.exchange([], offer("a", steps, 2 * steps))
        study.exchange([], offer("b", 100, 101))
        assert study.progress().utilisation == (21 + 100) / (42 + 101)
    assert stored(url) == {"a": (21, 42), "b": (100, 101)}


def test_counts_are_written_with_each_sweep(url: str):
    with running(url) as study:
        study.exchange([], offer("a", 5, 6))
        study.exchange([], offer("a", 1, 1))
        study.exchange([], offer("b", 1, 3))  # who is new is written at once, with all that is known
        assert stored(url)["a"] == (6, 7)


def test_status_and_report_add_up_the_workers_of_all_launches(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with running(url) as study:
        study.exchange([], offer("first", 1_000_000, 1_000_000))
    with running(url) as study:
        study.exchange([], offer("second", 234_567, 268_000))
        assert study.progress().model_steps == 234_567  # of this launch alone
    app(["status", "tiny", "--storage", url], standalone_mode=False)
    assert "\nlane utilisation 97.4 % (1,234,567 of 1,268,000 lane-steps)\n" in capsys.readouterr().out
    app(["report", "study", "tiny", "--storage", url, "-o", str(tmp_path / "page.md")], standalone_mode=False)
    assert "Lane utilisation is 97.4 % (1,234,567 of 1,268,000 lane-steps)" in (tmp_path / "page.md").read_text()
    with open_reader(url) as reader:
        status = read_status(reader, "tiny")
    assert (status.progress.model_steps, status.progress.lane_room) == (1_234_567, 1_268_000)


def test_status_says_nothing_of_lanes_that_have_not_trained(url: str, capsys: pytest.CaptureFixture[str]):
    with running(url) as study:
        study.exchange([], offer("a", 0, 0))
    app(["status", "tiny", "--storage", url], standalone_mode=False)
    assert "lane utilisation" not in capsys.readouterr().out
    app(["status", "tiny", "--storage", url, "--format", "csv"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[1].endswith(",0,0,")


def test_what_workers_really_train_is_what_is_counted(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(url) as study:
        inline.run(study, device="cpu", width=2, workers=2)
    [(trained,)] = raw(url, "SELECT sum(steps) FROM trials WHERE state = 'finished'")
    counts = stored(url).values()
    assert len(counts) == 2
    assert sum(steps for steps, _ in counts) == trained
    assert all(steps <= room <= 2 * steps for steps, room in counts)


def test_resume_brings_up_a_database_that_looking_alone_refuses(url: str, capsys: pytest.CaptureFixture[str]):
    make_first_version(url)
    with pytest.raises(StorageError, match="run: search db upgrade"):
        app(["status", "old", "--storage", url], standalone_mode=False)
    app(["resume", "old", "--storage", url], standalone_mode=False)
    app(["status", "old", "--storage", url], standalone_mode=False)
    assert "all 9 trials are done" in capsys.readouterr().err
