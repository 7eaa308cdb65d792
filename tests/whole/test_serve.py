"""The service as a program: studies side by side with the numbers of launches, kills, and what people ask meanwhile."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from graft.launching.checkpoints import Checkpoints
from graft.launching.enrolling import find_study
from graft.launching.placement import Placement
from graft.launching.planning.reading import read_space
from graft.serving.service import Service
from graft.serving.submitting import submit
from spaces.errors import StorageError, StudyError
from storage import AwayError, open_reader
from tests.support.databases import DATABASES, raw
from tests.support.launches import ROOT, SPACE, Numbers, ended, finished, kill, numbers, running, search, wait_until
from tests.support.serve import OTHER, SERVE, UNHURRIED, queue, submit_both

ALIKE = ("--seed", "9", "--trials", "24")
"""What makes a third one, whose packs are of the shapes of the first."""


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """Return what launches of the studies leave, one after the other."""
    folder = tmp_path_factory.mktemp("launched")
    for name, options in (("a", ()), ("b", OTHER), ("c", ALIKE)):
        search(folder, "launch", SPACE, "--study", name, *options, "--workers", "2", "--pack", "8")
    return numbers(f"sqlite:///{folder}/graft.db")


def submit_three(url: str) -> None:
    changes = {
        "a": {},
        "b": {"search.seed": "7", "model.width": "12"},
        "c": {"search.seed": "9", "search.trials": "24"},
    }
    for name, overrides in changes.items():
        submit(url, read_space(SPACE, overrides), study=name)


NOTE_COMPANIES = """
import os, time
from workers.engine.pack import Pack
train, noted = Pack.train_studies, set()

def note_and_train(pack, most):
    company = tuple(sorted({lane.study for lane in pack.lanes if lane}))
    if company not in noted:
        noted.add(company)
        with open("companies", "a") as file:
            print(*company, file=file)
    if not os.path.exists("go"):
        time.sleep(0.01)
        return []
    return train(pack, most)

Pack.train_studies = note_and_train
"""
"""Run before a service, which then notes the studies that have lanes in a pack together, in a file of its folder; and
makes no step until there is a file `go`: one study could be through before the next has begun."""


def companies(folder: Path, url: str) -> set[str]:
    """Return the names of studies that had lanes in one pack, in alphabetical order."""
    names = {str(entry.study_id): name for name, entry in queue(url).items()}
    file = folder / "companies"
    lines = file.read_text().splitlines() if file.exists() else []
    return {"".join(sorted(names[number] for number in line.split())) for line in lines}


@pytest.mark.long
def test_studies_side_by_side_have_the_numbers_of_launches_to_the_bit(url: str, tmp_path: Path, launched: Numbers):
    submit_both(tmp_path, url)
    lines = search(tmp_path, *SERVE, "--storage", url, "--until-empty")
    assert re.match("serves .*, 16 lanes on cpu", lines[0]), lines
    assert {line.split(":")[0] for line in lines[-2:]} == {"a", "b"}
    assert {(entry.state, entry.lanes) for entry in queue(url).values()} == {("done", 0)}
    assert raw(url, "SELECT DISTINCT state FROM studies") == [("finished",)]
    assert numbers(url) == {key: value for key, value in launched.items() if key[0] != "c"}
    # Both trained at the same time, on the same workers' devices.
    spans = raw(url, "SELECT study_id, min(started_at), max(finished_at) FROM trials GROUP BY study_id ORDER BY 1")
    assert spans[0][1] < spans[1][2]
    assert spans[1][1] < spans[0][2]


@pytest.mark.long
def test_killed_a_service_goes_on_where_it_was(tmp_path: Path, launched: Numbers):
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_three(url)
    for trials in (4, 20):
        with running(tmp_path, *SERVE, "--storage", url) as process:
            wait_until(lambda trials=trials: sum(finished(url, name) for name in "abc") >= trials)
            kill(process)
    assert {entry.state for entry in queue(url).values()} <= {"running", "done"}
    search(tmp_path, *SERVE, "--storage", url, "--until-empty")
    assert numbers(url) == launched
    assert {row for row in raw(url, "SELECT state, deaths FROM trials")} == {("finished", 0)}  # noqa: C416


def worker_processes(service: int) -> list[psutil.Process]:
    """Those that train for a service."""
    return [
        child for child in psutil.Process(service).children() if "workers.pool.processes" in " ".join(child.cmdline())
    ]


@pytest.mark.sampled(0, 1)
@pytest.mark.parametrize("url", DATABASES, indirect=True)
def test_studies_on_several_devices_lose_a_process_and_nothing_else(tmp_path: Path, url: str, launched: Numbers):
    """A worker process for each device: the lanes of one that is killed go to others, and no number changes."""
    submit_both(tmp_path, url)
    command = ("serve", "--devices", "cpu,cpu", "--pack", "8", "--storage", url)
    with running(tmp_path, *command, before=UNHURRIED) as process:
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= 4)
        workers = worker_processes(process.pid)
        workers[0].kill()
        wait_until(lambda: {entry.state for entry in queue(url).values()} == {"done"})
        process.terminate()
        assert process.wait(240) == 130
        assert not any(worker.is_running() for worker in workers)
    assert numbers(url) == {key: value for key, value in launched.items() if key[0] != "c"}
    assert raw(url, "SELECT DISTINCT state FROM studies") == [("finished",)]


@pytest.mark.slow
def test_killed_a_service_of_processes_goes_on_and_leaves_none(tmp_path: Path, launched: Numbers):
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_both(tmp_path, url)
    command = ("serve", "--devices", "cpu,cpu", "--pack", "8", "--storage", url)
    with running(tmp_path, *command) as process:
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= 4)
        workers = worker_processes(process.pid)
        kill(process)
        wait_until(lambda: not any(worker.is_running() for worker in workers))
    search(tmp_path, *command, "--until-empty")
    assert numbers(url) == {key: value for key, value in launched.items() if key[0] != "c"}


@pytest.mark.long
def test_a_study_that_is_taken_over_or_paused_leaves_the_pack_to_the_others(tmp_path: Path, launched: Numbers):
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_three(url)
    one_worker = ("serve", "--workers", "1", "--pack", "16", "--storage", url)
    with running(tmp_path, *one_worker, before=NOTE_COMPANIES) as process:
        wait_until(lambda: companies(tmp_path, url) >= {"ac", "b"})
        search(tmp_path, "queue", "pause", "b")
        raw(url, "UPDATE studies SET fence = fence + 1 WHERE name = 'a'")
        (tmp_path / "go").touch()
        wait_until(lambda: queue(url)["c"].state == "done" and queue(url)["a"].state == "failed")
        assert queue(url)["a"].reason == "study 'a' was taken over by another process"
        assert queue(url)["b"].state == "paused"
        process.send_signal(signal.SIGTERM)
        ended(process, 130)
    assert not companies(tmp_path, url) & {"ab", "bc", "abc"}
    of_c = {key: value for key, value in launched.items() if key[0] == "c"}
    assert of_c.items() <= numbers(url).items() <= launched.items()
    for name in "ab":
        search(tmp_path, "queue", "resume", name)
    search(tmp_path, *one_worker, "--until-empty")
    assert numbers(url) == launched
    # The workers of the study that nothing happened to made the steps of its own trials, and no others.
    made, needed = (
        raw(url, f"SELECT sum({table}.steps) FROM {table} JOIN studies ON studies.id = study_id WHERE name = 'c'")
        for table in ("workers", "trials")
    )
    assert made == needed


@pytest.mark.long
def test_what_is_asked_while_it_serves_is_done_within_seconds(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    search(tmp_path, "submit", SPACE, "--name", "a", "--trials", "4000")
    with running(tmp_path, *SERVE, before=UNHURRIED) as process:
        wait_until(lambda: finished(url, "a") > 0)
        said = search(tmp_path, "submit", SPACE, "--name", "b", *OTHER, "--trials", "4000", "--max-lanes", "5")
        assert re.fullmatch("b: (waiting|running), priority 0, 4,000 trials", said[-1])
        wait_until(lambda: queue(url)["b"].lanes > 0, seconds=60)
        assert queue(url)["b"].reason == "has the lanes that it may have at most"
        assert queue(url)["b"].lanes <= 5
        refused = search(tmp_path, *SERVE, "--storage", url, status=2)
        assert re.match(
            r"error: .*graft.db is being written by process \d+ on .*\(service, study a, study b\)", refused[-1]
        )
        search(tmp_path, "queue", "reprioritise", "b", "--priority", "5")
        search(tmp_path, "queue", "pause", "a")
        wait_until(lambda: queue(url)["a"].lanes == 0)
        assert not _is_run(url, "a")
        assert _is_run(url, "b")
        search(tmp_path, "queue", "cancel", "b")
        search(tmp_path, "queue", "resume", "a")
        wait_until(lambda: queue(url)["a"].lanes > 0 and queue(url)["b"].lanes == 0)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=240)
        assert process.returncode == 130, error
        assert error.splitlines()[-1] == "stopped with everything kept; `search serve` goes on"
    entries = queue(url)
    assert (entries["a"].state, entries["b"].state) == ("waiting", "cancelled")
    assert {row for (row,) in raw(url, "SELECT state FROM studies")} == {"stopped"}


def _is_run(url: str, study: str) -> bool:
    with open_reader(url) as reader:
        return reader.study(study).holder() is not None


@pytest.mark.long
def test_a_study_that_goes_wrong_fails_alone(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_both(tmp_path, url)
    with closing(sqlite3.connect(tmp_path / "graft.db", isolation_level=None)) as connection:
        connection.execute("UPDATE studies SET space = replace(space, 'minimal', 'minimale') WHERE name = 'a'")
    lines = search(tmp_path, *SERVE, "--until-empty")
    entries = queue(url)
    assert (entries["a"].state, entries["b"].state) == ("failed", "done")
    assert "minimale" in entries["a"].reason
    assert f"a: failed: {entries['a'].reason}" in lines


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("submit", "none.yaml"), "none.yaml"),
        (("submit", SPACE, "--priority", "1000"), "priority 1000 must be a whole number from -100 to 100"),
        (("submit", SPACE, "--weight", "-1"), "weight -1.0 must be above 0 and at most 1000"),
        (("submit", SPACE, "--max-lanes", "0"), "max_lanes 0 must be from 1 to 1,000,000"),
        (("submit", SPACE, "--set", "model.width=-2"), "model.width"),
        (("serve", "--device", "tpu"), "tpu"),
        (("serve", "--studies", "0"), "--studies"),
        (("queue",), "there is no such database"),
        (("queue", "pause", "x"), "there is no such database"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: tuple[str, ...], line: str):
    lines = search(tmp_path, *arguments, status=2)
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert line in lines[0]
    assert not list(tmp_path.iterdir())


def test_a_study_that_begins_while_the_server_is_away_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a restart of PostgreSQL is seen by what reads the study before it is claimed."""
    url, said, refused = f"sqlite:///{tmp_path}/graft.db", list[str](), list[str]()

    def find_study_later(database: str, name: str) -> Mapping[str, Any]:
        if not refused:
            refused.append(name)
            raise AwayError("the server is starting up")
        return find_study(database, name)

    monkeypatch.setattr("graft.serving.running.find_study", find_study_later)
    submit(url, read_space(SPACE, {"search.trials": "2", "search.group": "2"}), study="a")
    placement = Placement(executor="inline", device="cpu", workers=1, width=2)
    with Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60), say=said.append) as service:
        service.run(until_empty=True)
    assert said[1] == "a: waits, as the database does not answer: the server is starting up"
    assert (refused, queue(url)["a"].state) == (["a"], "done")


def test_a_file_that_is_deleted_as_a_study_begins_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Before the study's own controller is there, which would notice when it writes."""
    url = f"sqlite:///{tmp_path}/graft.db"

    def delete_and_find(database: str, name: str) -> Mapping[str, Any]:
        (tmp_path / "graft.db").unlink()
        return find_study(database, name)

    monkeypatch.setattr("graft.serving.running.find_study", delete_and_find)
    submit(url, read_space(SPACE, {}), study="a")
    placement = Placement(executor="inline", device="cpu", workers=1, width=2)
    with (
        Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60)) as service,
        pytest.raises(StorageError, match=r"was deleted under this run, which stops; all that it held is in .*rescue"),
    ):
        service.run()
    (tmp_path / "graft.db.rescue").rename(tmp_path / "graft.db")
    assert queue(url)["a"].state == "running"


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(executor="ray"), "a service on Ray needs --ray-address; on the devices of this machine, --devices"),
        (
            Placement(executor="inline", device="cuda"),
            "this machine has 3 GPUs; write --devices cuda for all of them, or choose of cuda:0,cuda:1,cuda:2",
        ),
    ],
)
def test_of_several_gpus_it_is_said_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: Placement, words: str
):
    monkeypatch.setattr("workers.engine.machine.devices.gpus", lambda: 3)
    with pytest.raises(StudyError, match=words):
        Service(f"sqlite:///{tmp_path}/graft.db", placement=placement, checkpoints=Checkpoints(url=None, seconds=60))
    assert not list(tmp_path.iterdir())


NAMES = ("first", "second")


@pytest.mark.slow
def test_studies_with_different_plug_ins_of_one_name_train_side_by_side(tmp_path: Path):
    by_kind: dict[str, Numbers] = {}
    for kind, command in (("launched", ("launch", "--study")), ("served", ("submit", "--name"))):
        folder = tmp_path / kind
        shutil.copytree(ROOT / "tests" / "data" / "outside", folder)
        space, helper = folder / "space.yaml", folder / "noise.py"
        space.write_text(space.read_text().replace(", ./near.py", "").replace("sampler: near", "sampler: random"))
        for name, scale in zip(NAMES, ("0.5", "3.0"), strict=True):
            helper.write_text(re.sub(r"SCALE = .*", f"SCALE = {scale}", helper.read_text()))
            search(folder, command[0], "space.yaml", command[1], name, "--trials", "8")
        if kind == "served":
            search(folder, *SERVE, "--until-empty")
        by_kind[kind] = numbers(f"sqlite:///{folder}/graft.db")
    assert by_kind["served"] == by_kind["launched"]
    first, second = ({key[1:]: by_kind["served"][key] for key in by_kind["served"] if key[0] == name} for name in NAMES)
    assert first.keys() == second.keys()
    assert first != second


@pytest.mark.long
def test_a_file_that_is_deleted_under_the_service_ends_it_in_one_line(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_both(tmp_path, url)
    with running(tmp_path, *SERVE, before=UNHURRIED) as process:
        wait_until(lambda: finished(url, "a") > 0)
        (tmp_path / "graft.db").unlink()
        lines = ended(process, 2)
    assert re.match(r"error: .*graft.db was deleted under this run.* is in .*graft.db.rescue", lines[-1]), lines
    (tmp_path / "graft.db.rescue").rename(tmp_path / "graft.db")
    assert {entry.state for entry in queue(url).values()} == {"running"}
