"""Power cuts that lose what was not synchronised: nothing that was answered is lost, no torn file is taken for a good
one, and studies go on to their end.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from search.steering.controller import Controller
from spaces.records import Checkpoint
from storage import open_reader, open_store
from tests.support.controller import FakeWorker, Rows, finish
from tests.support.databases import raw
from tests.support.faults import rescued
from tests.support.faults.power import ANSWERED, Disk, Entry, record
from tests.support.faults.powered import NAME, SavingWorker, controlling, make_space, open_archive, read_state, state_of
from tests.support.own_file import rescue_in

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="what is preloaded is compiled")

TRIALS = 16


def record_program(folder: Path, seed: int, *synchronous: str) -> list[Entry]:
    folder.mkdir()
    return record(folder, "tests.support.faults.powered", str(seed), str(TRIALS), *synchronous)


def alone() -> dict[tuple[int, int], float | None]:
    """Return (number, step) -> what each trial reports where nothing happens."""
    memory = Rows()
    finish(Controller.begin(make_space(TRIALS), memory), FakeWorker("w", 4))
    return {(n, report.step): report.metrics[0].value for n, row in memory.rows.items() for report in row.reports}


def cut_places(entries: list[Entry], inode: int, cuts: int, chance: random.Random) -> list[int]:
    """Return after how many entries the power is cut: half of them right after an answer."""
    answers = [count for count, entry in enumerate(entries, 1) if entry.kind == "w" and entry.inode == inode]
    places = [chance.choice(answers) if index % 2 else chance.randrange(1, len(entries)) for index in range(cuts)]
    return sorted(places)


def cut(entries: list[Entry], recorded: Path, folder: Path, cuts: int, seed: int) -> Iterator[tuple[Path, list[Any]]]:
    """Yield what is on the disk after each cut, and what was answered before it."""
    chance = random.Random(seed)
    [inode] = [entry.inode for entry in entries if entry.name == f"{recorded}/{ANSWERED}"]
    disk, done = Disk(recorded), 0
    for index, count in enumerate(cut_places(entries, inode, cuts, chance)):
        for entry in entries[done:count]:
            disk.apply(entry)
        done = count
        target = folder / f"cut-{index}"
        disk.cut(target, chance)
        yield target, [json.loads(line) for line in disk.read(ANSWERED).splitlines()]
        shutil.rmtree(target)


def find_saved(folder: Path) -> set[Any]:
    """Return the (number, step) up to which a trial need not be trained again; each file that is read must be whole."""
    archive, saved = open_archive(folder), set[Any]()
    rows = raw(
        f"sqlite:///{folder}/graft.db",
        "SELECT number, checkpoints.fence, step, path, place, sha256 FROM checkpoints "
        "JOIN trials ON trials.id = trial_id",
    )
    for number, *row in rows:
        checkpoint = Checkpoint(number, *row)
        state = read_state(archive, checkpoint)
        if state is not None:
            assert state.equal(state_of(number, checkpoint.step))
            saved |= {(number, step) for step in range(checkpoint.step + 1)}
    return saved


def find_lost(folder: Path, answered: list[Any]) -> list[Any]:
    """Return the answers that do not hold once the database was opened, and all requests taken in."""
    url, known = f"sqlite:///{folder}/graft.db", set[Any]()
    open_store(url).close()
    assert raw(url, "PRAGMA integrity_check") == [("ok",)]
    with open_reader(url) as reader:
        known |= {("revoked", name) for kind, name, *_ in answered if kind == "revoked" and not reader.find_token(name)}
    with open_store(url) as store:
        store.take_requests()
    known |= {("submitted", name) for (name,) in raw(url, "SELECT name FROM studies")}
    known |= {("made", name) for (name,) in raw(url, "SELECT name FROM tokens")}
    states = dict(raw(url, "SELECT number, state FROM trials"))
    for number, step in raw(url, "SELECT number, step FROM metrics JOIN trials ON trials.id = trial_id"):
        known |= {("report", number, step, "running"), ("report", number, step, states[number])}
        if states[number] not in ("queued", "running"):
            known.add(("saved", number, step))
    known |= {("saved", *saved) for saved in find_saved(folder)}
    # A trial that ran when a process began may have begun again.
    begun = max((index for index, (kind, *_) in enumerate(answered) if kind == "begun"), default=-1)
    held = [row for index, row in enumerate(answered) if index > begun or row[0] != "report" or row[3] != "running"]
    return [row for row in held if row[0] != "begun" and tuple(row) not in known]


def finish_study(folder: Path) -> dict[tuple[int, int], float | None]:
    """Train what is left of the study; (number, step) -> what is stored in the end."""
    with controlling(folder, TRIALS) as (_, study):
        archive = open_archive(folder)
        controller = Controller.begin(make_space(TRIALS), study, keep_checkpoints=archive.tidy)
        finish(controller, SavingWorker("z", 5, archive))
    rows = raw(
        f"sqlite:///{folder}/graft.db",
        "SELECT number, step, value FROM metrics JOIN trials ON trials.id = trial_id "
        f"JOIN studies ON studies.id = study_id WHERE studies.name = '{NAME}'",
    )
    assert len(rows) == len({(number, step) for number, step, _ in rows})
    return {(number, step): value for number, step, value in rows}


def check_cuts(tmp_path: Path, cuts: int, seed: int) -> None:
    recorded, undisturbed = tmp_path / "recorded", alone()
    entries = record_program(recorded, seed)
    answers = 0
    for folder, answered in cut(entries, recorded, tmp_path, cuts, seed):
        assert find_lost(folder, answered) == []
        assert finish_study(folder) == undisturbed
        answers += len(answered)
    assert answers > cuts


@pytest.mark.long
def test_no_power_cut_takes_what_was_answered(tmp_path: Path) -> None:
    check_cuts(tmp_path, 12, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_forty_power_cuts_take_nothing(tmp_path: Path, seed: int) -> None:
    check_cuts(tmp_path, 40, seed)


@pytest.mark.long
@pytest.mark.parametrize("kind", rescued.KINDS)
def test_a_rescue_that_was_told_is_on_the_disk(tmp_path: Path, kind: str) -> None:
    """The database is gone by then, so that it is the only copy of what was recorded."""
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    entries = record(recorded, "tests.support.faults.rescued", kind)
    [inode] = [entry.inode for entry in entries if entry.name == f"{recorded}/{ANSWERED}"]
    first = next(count for count, entry in enumerate(entries, 1) if entry.kind == "w" and entry.inode == inode)
    for seed in range(10):
        disk, chance = Disk(recorded), random.Random(seed)
        for entry in entries[: chance.randint(first, len(entries))]:
            disk.apply(entry)
        folder = tmp_path / f"cut-{seed}"
        disk.cut(folder, chance)
        rescue = folder / rescue_in(disk.read(ANSWERED).decode()).relative_to(recorded)
        assert raw(f"sqlite:///{rescue}", "SELECT name FROM studies") == [("one",)]
        assert raw(f"sqlite:///{rescue}", "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.long
def test_a_database_that_is_not_synchronised_at_each_commit_loses_answers(tmp_path: Path) -> None:
    """The cuts are such as find it: what SQLite's documentation advises for a log of commits, NORMAL, would not do."""
    recorded = tmp_path / "recorded"
    entries = record_program(recorded, 1, "NORMAL")
    assert sum(len(find_lost(*case)) for case in cut(entries, recorded, tmp_path, 12, 1)) > 0
