"""A SQLite study knows its own file: by whatever name it is opened, and when it is deleted or replaced under a run."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from spaces.errors import StorageError, StudyError
from storage import ControlledStudy, file_of, open_reader, open_store
from storage.databases import file_lock
from storage.databases.file_lock import FileLock, Identity
from storage.databases.sqlite_file import SqliteFile, mount_points
from tests.support.databases import (
    OBJECTIVE,
    controlled,
    controlled_with_store,
    heard,
    make_report,
    make_trial,
    new_study,
    raw,
)
from tests.support.fences import WRITES, Write
from tests.support.launches import SPACE, check_complete, ended, finished, running, search, wait_until
from tests.support.own_file import rescue_in
from tests.support.storage_safety import BATCHES, run

OPEN = "import sys; from storage import open_store; open_store(sys.argv[1])"


@contextmanager
def another_process(url: str) -> Generator[int]:
    """Another process writes the study; its number."""
    with run(BATCHES, url) as writer:
        assert writer.stdout
        next(writer.stdout)
        yield writer.pid
        writer.kill()


def link(path: Path) -> str:
    alias = path.with_name("link.db")
    alias.symlink_to(path)
    return str(alias)


def linked_folder(path: Path) -> str:
    alias = path.parent.with_name("elsewhere")
    alias.symlink_to(path.parent, target_is_directory=True)
    return f"{alias}/{path.name}"


def hard_link(path: Path) -> str:
    alias = path.with_name("hard.db")
    alias.hardlink_to(path)
    return str(alias)


def unlocked(path: Path) -> str:
    Path(f"{path}.lock").unlink()
    return str(path)


def relative(path: Path) -> str:
    return os.path.relpath(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "alias", [link, linked_folder, hard_link, unlocked, relative], ids=lambda alias: alias.__name__
)
def test_no_other_name_of_the_file_lets_a_second_process_write_it(tmp_path: Path, alias: Callable[[Path], str]):
    path = tmp_path / "here" / "graft.db"
    path.parent.mkdir()
    with another_process(f"sqlite:///{path}") as number:
        other = f"sqlite:///{alias(path)}"
        with pytest.raises(StudyError, match=r"is being written by (process|another process)") as caught:
            open_store(other)
        assert "stop it first" in str(caught.value)
        if alias in (link, linked_folder, relative):
            assert f"process {number}" in str(caught.value)
            assert file_of(other) == str(path.resolve())
            with open_reader(other) as reader:
                assert (reader.study("study").holder() or "").startswith(f"process {number} on ")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root may mount a folder twice")
@pytest.mark.parametrize(("mounted", "words"), [("folder", "is being written by"), ("file", "is mounted by itself")])
def test_no_mount_of_the_file_lets_a_second_process_write_it(tmp_path: Path, mounted: str, words: str):
    path, other = tmp_path / "here" / "graft.db", tmp_path / "there"
    path.parent.mkdir()
    other.mkdir()
    (other / "graft.db").touch()
    source, target = (path.parent, other) if mounted == "folder" else (path, other / "graft.db")
    command = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && exec "$2" -c "$3" "$4"']
    with controlled(f"sqlite:///{path}"):
        arguments = [source, target, sys.executable, OPEN, f"sqlite:///{other}/graft.db"]
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if "mount:" in answer.stderr or "unshare:" in answer.stderr:
        pytest.skip("nothing can be mounted here")
    if mounted == "file":  # it is locked by now; alone it would still be refused
        arguments[-1] = f"sqlite:///{other}/graft.db"
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert words in answer.stderr.splitlines()[-1]


def test_a_file_of_two_names_is_refused_also_when_nobody_writes_it(tmp_path: Path):
    """Killed under one name it has commits in a log that nobody finds under the other."""
    with controlled(f"sqlite:///{tmp_path}/graft.db"):
        pass
    (tmp_path / "hard.db").hardlink_to(tmp_path / "graft.db")
    for name in ("graft.db", "hard.db"):
        with pytest.raises(StorageError, match=r"has 2 names \(hard links\), and its log would lie beside one"):
            open_store(f"sqlite:///{tmp_path}/{name}")
    (tmp_path / "hard.db").unlink()
    open_store(f"sqlite:///{tmp_path}/graft.db").close()


def test_one_process_does_not_open_its_own_file_twice(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with controlled(url), pytest.raises(StudyError, match="is being written by"):
        open_store(url)
    open_store(url).close()


def test_a_file_that_is_replaced_between_opening_and_locking_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "graft.db"
    for file in (path, tmp_path / "other.db"):
        file.touch()
    lock, old = FileLock(path), Identity.at(path)
    find = file_lock._Descriptors.of

    def find_and_replace(*arguments: Any) -> tuple[int, Identity]:
        descriptor = find(*arguments)
        if (tmp_path / "other.db").exists():
            os.replace(tmp_path / "other.db", path)
        return descriptor

    monkeypatch.setattr(file_lock._Descriptors, "of", find_and_replace)
    lock.take("test")
    assert old != lock.identity == Identity.at(path)
    lock.release()


def test_a_file_that_is_replaced_after_it_was_locked_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "graft.db"
    for name in ("graft.db", "other.db"):
        with controlled(f"sqlite:///{tmp_path}/{name}"):
            pass
    connect = SqliteFile.writer

    def replace_and_connect(file: SqliteFile) -> sqlite3.Connection:
        if (tmp_path / "other.db").exists():
            os.replace(tmp_path / "other.db", path)
        return connect(file)

    monkeypatch.setattr(SqliteFile, "writer", replace_and_connect)
    with pytest.raises(StorageError, match="was replaced while it was opened; launch again"):
        open_store(f"sqlite:///{path}")
    open_store(f"sqlite:///{path}").close()


def test_a_mount_table_is_read_with_its_escapes(tmp_path: Path):
    table = tmp_path / "mountinfo"
    table.write_text("22 1 8:1 / / rw - ext4 a rw\n23 22 8:1 /x /my\\040data/graft.db rw - ext4 a rw\n")
    assert mount_points(table) == {Path("/"), Path("/my data/graft.db")}
    assert mount_points(tmp_path / "none") == set()


# -- deleted or replaced under a run ---------------------------------------------------------------------------------


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    with controlled(f"sqlite:///{path}.other", name="other") as study:
        study.start([make_trial(0)], "w")
    os.replace(f"{path}.other", path)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def record(study: ControlledStudy, step: int) -> None:
    study.record([make_report(n, step) for n in range(3)])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (delete, r"graft\.db was deleted under this run, which stops; all that it held is in "),
        (replace, r"graft\.db was replaced under this run"),
        (delete_log, r"graft\.db-wal was deleted under this run"),
        (delete_folder, r"graft\.db was deleted under this run"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_file_that_is_gone_ends_the_run_in_a_line_and_all_that_it_held_can_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], words: str
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "here" / "graft.db"
    path.parent.mkdir()
    url = f"sqlite:///{path}"
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(3)], "w")
        record(study, 10)
        harm(path)
        with pytest.raises(StorageError, match=words) as caught:
            record(study, 20)
        assert "\n" not in str(caught.value)
        with pytest.raises(StorageError, match=words):
            study.set_state("stopped")
    rescue = rescue_in(str(caught.value))
    if harm is replace:
        assert raw(url, "SELECT name FROM studies") == [("other",)], "the other file is as it was"
        assert raw(url, "PRAGMA integrity_check") == [("ok",)]
    path.parent.mkdir(exist_ok=True)
    os.replace(rescue, path)  # as the line says
    assert raw(url, "SELECT DISTINCT step FROM metrics ORDER BY step") == [(10,), (20,)], (
        "what was not acknowledged, too"
    )
    assert raw(url, "PRAGMA integrity_check") == [("ok",)]
    with open_store(url) as store:
        again = store.take_control(study.id, policy="full", objective=OBJECTIVE)
        assert [trial.number for trial in again.queries.running()] == [0, 1, 2]
        record(again, 30)


@pytest.mark.parametrize("harm", [delete, replace, delete_log])
def test_a_transaction_that_fails_as_the_file_goes_is_told_as_the_file_s(tmp_path: Path, harm: Callable[[Path], None]):
    """SQLite may be the first to notice, in words that do not help: what was committed is saved all the same."""
    path = tmp_path / "graft.db"
    url = f"sqlite:///{path}"

    def lose(connection: Connection) -> None:
        harm(path)
        connection.exec_driver_sql("DELETE FROM a_table_of_another_file")

    with controlled_with_store(url) as (store, study):
        study.start([make_trial(n) for n in range(3)], "w")
        record(study, 10)
        with pytest.raises(StorageError, match=r"(deleted|replaced) under this run, which stops") as caught:
            store._session.transact(lose)
        with pytest.raises(StorageError, match="under this run"):
            record(study, 20)
    os.replace(rescue_in(str(caught.value)), path)
    assert raw(url, "SELECT DISTINCT step FROM metrics") == [(10,)]


def test_a_transaction_that_fails_where_the_file_lies_says_why_and_the_next_is_made(tmp_path: Path):
    with controlled_with_store(f"sqlite:///{tmp_path}/graft.db") as (store, study):
        with pytest.raises(StorageError, match="no such table: nowhere"):
            store._session.transact(lambda connection: connection.exec_driver_sql("DELETE FROM nowhere"))
        study.start([make_trial(0)], "w")
    assert not list(tmp_path.glob("*.rescue*"))


def test_a_rescue_that_cannot_be_written_is_told_and_an_earlier_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path}/graft.db"
    earlier = tmp_path / "graft.db.rescue"
    earlier.write_text("mine")

    def refuse(*names: object) -> None:
        raise OSError(28, "No space left on device", "graft.db.rescue1")

    with controlled(url) as study:
        (tmp_path / "graft.db").unlink()
        with monkeypatch.context() as patch:
            patch.setattr("storage.databases.sqlite_file.os.replace", refuse)
            with pytest.raises(StorageError, match=r"what it held is lost: cannot write graft.db.rescue1: No space"):
                study.set_state("running")
    assert earlier.read_text() == "mine"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.sampled(0, 1)
@pytest.mark.parametrize("harm", [delete, replace])
def test_a_launch_whose_file_is_gone_stops_in_one_line_and_resumes_from_the_rescue(
    tmp_path: Path, harm: Callable[[Path], None]
):
    path = tmp_path / "graft.db"
    url = f"sqlite:///{path}"
    with running(tmp_path, "launch", SPACE, "--workers", "2", "--pack", "4") as process:
        wait_until(lambda: finished(url) > 3)
        harm(path)
        lines = ended(process, 2)
    assert [line for line in lines if line.startswith("error: ")] == [lines[-1]]
    os.replace(rescue_in(lines[-1]), path)
    assert finished(url) > 3
    search(tmp_path, "resume", "tiny")
    check_complete(url)


# -- the claim, in each transaction ----------------------------------------------------------------------------------

MORE_WRITES = {
    "leases": Write(lambda study, fence: study.renew_leases([heard()], 60), ""),
    "state": Write(lambda study, fence: study.set_state("stopped"), ""),
    "checkpoint URL": Write(lambda study, fence: study.set_checkpoint_url("/elsewhere"), ""),
}
EVERYTHING = ("studies", "trials", "metrics", "checkpoints", "workers")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("write", (WRITES | MORE_WRITES).values(), ids=[*WRITES, *MORE_WRITES])
def test_whoever_claims_the_study_past_the_lock_ends_all_writes_of_who_had_it(url: str, write: Write):
    with open_store(url) as store:
        study = store.take_control(new_study(store), policy="full", objective=OBJECTIVE)
        study.start([make_trial(0)], "w")
        raw(url, "UPDATE studies SET fence = fence + 1")
        before = [raw(url, f"SELECT * FROM {table} ORDER BY 1, 2") for table in EVERYTHING]
        with pytest.raises(StudyError, match="study 'study' was taken over by another process"):
            write.act(study, 1)
        assert [raw(url, f"SELECT * FROM {table} ORDER BY 1, 2") for table in EVERYTHING] == before
