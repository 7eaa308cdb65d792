"""The commands `search db`: upgrade, check, backup and copy, on both databases, through kill -9, and on old schemas."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

import storage
from graft.launching.checkpoints import folder_of
from spaces.errors import StorageError, StudyError
from storage import NewStudy, migrations, open_reader, open_store
from storage.copying import backup, copy
from storage.schema import VERSION, VERSION_TABLE, trial_id
from tests.support import studies
from tests.support.databases import (
    Server,
    controlled,
    controlled_with_store,
    held,
    make_report,
    make_trial,
    new_study,
    raw,
)
from tests.support.db_commands import unchecked
from tests.support.inside import called

ROOT = Path(storage.__file__).parents[1]
OLD = ("0001", "0002", "0003", "0004")
NOW = "'2026-01-02 03:04:05.000000'"
TABLES = ("studies", "architectures", "trials", "metrics", "checkpoints", "workers", "changes", "submissions")
JSON = {"params", "draws", "config", "knots", "past", "known", "tags", "differences"}

Search = Callable[..., tuple[str, str]]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program in an empty folder; what it wrote to stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)

    def run(*arguments: str, status: int | tuple[int, ...] = 0) -> tuple[str, str]:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status or (isinstance(status, tuple) and code in status), error
        assert "Traceback" not in error
        return out, error

    return run


@pytest.fixture
def other(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """Yield an empty database of the kind that `url` is not."""
    if not url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/other.db"
        return
    with request.getfixturevalue("postgres").database() as address:
        yield address


def contents(url: str, study: str = "demo") -> dict[str, list[Any]]:
    """Every row of a study, asked of the driver alone, with ids taken relative to the study's.

    The folder of its checkpoints is left out, as a copy has another one.
    """
    [(key,)] = raw(url, f"SELECT id FROM studies WHERE name = '{study}'")
    first = key * 10**9
    of_trials = f"trial_id / 1000000000 = {key}"
    mine = {"studies": f"id = {key}", "metrics": of_trials, "checkpoints": of_trials}
    return {table: _relative(url, table, mine.get(table, f"study_id = {key}"), first) for table in TABLES}


def _relative(url: str, table: str, condition: str, first: int) -> list[Any]:
    names = storage.schema.metadata.tables[table].columns.keys()
    columns = [name for name in names if name != "checkpoint_folder"]
    rows = raw(url, f"SELECT {', '.join(columns)} FROM {table} WHERE {condition}")
    return sorted([_value(name, value, first) for name, value in zip(columns, row, strict=True)] for row in rows)


def _value(name: str, value: Any, first: int) -> str:
    if name in ("study_id", "architecture_id") or (name == "id" and isinstance(value, int) and value < 10**9):
        return ""
    if name in ("id", "trial_id") and isinstance(value, int):
        return str(value - first)
    if name in JSON:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, sort_keys=True)
    if name in ("stop_requested", "archived"):
        return str(bool(value))
    if name.endswith(("_at", "_until")) and value is not None:
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC).isoformat()
    return str(value)


def fill(url: str) -> None:
    """Write a study with everything that one can have, and one before and after it, so that ids differ."""
    with open_store(url) as store:
        new_study(store, "first")
        key = studies.write_study(store).id
        new_study(store, "last")
    trial = trial_id(key, 3)
    raw(
        url,
        f"INSERT INTO architectures VALUES (17, {key}, {trial}, 'copy', 'mlp', -1.5, 2.5, '[0.1, 1e-300]', {NOW}),"
        f" (4, {key}, {trial + 1}, 'copy', 'attention', 0, 1, '[]', {NOW})",
    )
    raw(url, f"UPDATE trials SET architecture_id = 17, parent = 2, parent_step = 50 WHERE id = {trial + 2}")
    raw(url, f"UPDATE studies SET steps = steps - 50 WHERE id = {key}")  # which that trial did not train itself
    raw(url, f"UPDATE trials SET error = 'π \U0001f600 100% ''quoted'' \\ ', fence = 4 WHERE id = {trial + 3}")
    raw(url, f"UPDATE metrics SET value = NULL WHERE trial_id = {trial} AND step = 50")
    raw(url, f"UPDATE studies SET note = 'a note', tags = '[\"a\"]', archived = true WHERE id = {key}")
    raw(
        url,
        f"INSERT INTO submissions VALUES ({key}, 'request', 'ann', 3, 0.5, 7, 'paused', '', 0, 0, {NOW}, {NOW}, NULL)",
    )
    raw(url, f"INSERT INTO changes VALUES ({key}, 0, {NOW}, '0.2.0', 5, '[[\"search.trials\", 5, 9]]', 'study: demo')")


# --- upgrade


def make_version(url: str, version: str) -> None:
    """Make a database as this version of the schema left it, with a study, a trial, a metric and a worker."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    engine = create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()
    raw(
        url,
        f"""INSERT INTO studies (id, name, space, space_hash, objective, direction, seed, trials, state, stop_requested,
        version, created_at, updated_at) VALUES
        (1, 'old', 'study: old', 'f00', 'tvd/raw', 'minimize', 7, 9, 'finished', false, '0.0.1', {NOW}, {NOW})""",
    )
    raw(
        url,
        f"""INSERT INTO trials (id, study_id, number, group_number, state, task, model, seed, steps, objective, fence,
        created_at, started_at, finished_at, params, draws, config) VALUES
        (1000000000, 1, 0, 0, 'finished', 't', 'm', 5, 10, 0.5, 1, {NOW}, {NOW}, {NOW}, '{{}}', '{{}}',
        '{{"task": {{}}, "model": {{}}, "optimizer": {{}}, "training": {{}}}}')""",
    )
    if version >= "0004":
        raw(url, "UPDATE studies SET steps = 10")
    raw(url, "INSERT INTO metrics VALUES (1000000000, 10, 'tvd', 'raw', '', 0.5)")
    raw(
        url,
        f"""INSERT INTO workers (study_id, id, host, device, state, fence, heartbeat_at)
        VALUES (1, 'w', 'here', 'cpu', 'done', 1, {NOW})""",
    )


def version_of(url: str) -> str:
    [(version,)] = raw(url, f"SELECT version_num FROM {VERSION_TABLE}")
    return version


@pytest.mark.long
@pytest.mark.parametrize("version", OLD)
def test_a_database_of_any_old_schema_is_brought_up_and_keeps_its_rows(url: str, search: Search, version: str):
    make_version(url, version)
    _, said = search("db", "upgrade", "--dry-run", "--storage", url)
    assert version_of(url) == version
    assert [f"{step}:" in said for step in OLD] == [version < step <= VERSION for step in OLD]
    search("db", "upgrade", "--storage", url)
    assert version_of(url) == VERSION
    assert "nothing to do" in search("db", "upgrade", "--storage", url)[1]
    [study] = json.loads(search("studies", "--format", "json", "--storage", url)[0])
    assert (study["name"], study["ended"], study["best"]) == ("old", 1, 0.5)
    assert search("db", "check", "--storage", url)[0].endswith("rules looked at\n")


def test_an_older_study_s_steps_are_those_that_its_trials_trained_themselves(url: str, search: Search):
    make_version(url, "0003")
    raw(
        url,
        f"""INSERT INTO trials (id, study_id, number, group_number, state, task, model, seed, steps, fence, parent,
        parent_step, created_at, started_at, finished_at, error, params, draws, config) VALUES
        (1000000001, 1, 1, 0, 'diverged', 't', 'm', 5, 17, 1, 0, 10, {NOW}, {NOW}, {NOW}, '-', '{{}}', '{{}}', '{{}}'),
        (1000000002, 1, 2, 0, 'queued', 't', 'm', 5, 0, 1, 0, 10, {NOW}, {NOW}, NULL, NULL, '{{}}', '{{}}', '{{}}')""",
    )
    search("db", "upgrade", "--storage", url)
    [status] = json.loads(search("status", "old", "--format", "json", "--storage", url)[0])
    assert status["steps"] == 10 + 7


READING = (
    ("studies",),
    ("status", "old"),
    ("trials", "old"),
    ("show", "old", "0"),
    ("query", "SELECT 1 AS one"),
    ("export", "old", "-o", "trials.csv"),
    ("report", "study", "old", "-o", "report.html"),
    ("replay", "old", "0"),
    ("stop", "old"),
    ("db", "check"),
)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_commands_that_read_say_how_an_old_database_is_brought_up(
    tmp_path: Path, search: Search, arguments: tuple[str, ...]
):
    make_version(f"sqlite:///{tmp_path}/old.db", "0001")
    out, error = search(*arguments, "--storage", "old.db", status=2)
    assert out == ""
    assert error.count("\n") == 1
    assert error.endswith(f"has schema 0001, this program reads {VERSION}; run: search db upgrade\n")


@contextmanager
def run_study(url: str, study: int) -> Iterator[None]:
    """Yield a controller of an old program, which holds the study's lock."""
    if url.startswith("sqlite"):
        import fcntl

        with open(f"{url.removeprefix('sqlite:///')}.lock", "w+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("process 1 on here (study old)")
            lock.flush()
            yield
        return
    with psycopg.connect(url, application_name="process 1 on here") as connection:
        connection.execute("SELECT pg_advisory_lock(%s, %s)", (0x67726166, study))
        yield


@pytest.mark.parametrize(("study", "what"), [(1, "study 'old'"), (0, "the service")])
def test_an_old_database_is_not_brought_up_while_it_is_in_use(url: str, search: Search, study: int, what: str):
    make_version(url, "0002")
    with run_study(url, study):
        _, error = search("db", "upgrade", "--storage", url, status=2)
        with pytest.raises(StudyError):
            open_store(url)
    assert "process 1 on here" in error.splitlines()[-1]
    assert url.startswith("sqlite") or f"{what} is being run by" in error.splitlines()[-1]
    assert "stop it first" in error.splitlines()[-1]
    assert version_of(url) == "0002"


def test_an_upgrade_that_fails_leaves_the_old_schema(url: str, search: Search):
    make_version(url, "0001")
    raw(url, "ALTER TABLE trials ADD COLUMN parent bigint")  # what 0003 wants to add
    _, error = search("db", "upgrade", "--storage", url, status=2)
    assert "parent" in error
    assert version_of(url) == "0001"
    with pytest.raises((sqlite3.Error, psycopg.Error), match="room"):
        raw(url, "SELECT room FROM workers")  # 0002 was undone with it


@pytest.mark.long
@pytest.mark.parametrize("name", ["upgrade", "check"])
def test_a_database_that_is_missing_or_foreign_or_newer_is_refused(tmp_path: Path, search: Search, name: str):
    assert "there is no such database" in search("db", name, "--storage", "none.db", status=2)[1]
    assert list(tmp_path.iterdir()) == []
    raw(f"sqlite:///{tmp_path}/foreign.db", "CREATE TABLE theirs (i int)")
    assert "is not a Graft database" in search("db", name, "--storage", "foreign.db", status=2)[1]
    make_version(f"sqlite:///{tmp_path}/new.db", VERSION)
    raw(f"sqlite:///{tmp_path}/new.db", f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    assert "newer than" in search("db", name, "--storage", "new.db", status=2)[1]


# --- check


FIRST = 2 * 10**9
"""The id of the first trial of the study that `fill` writes second."""

FAULTS = {
    "UPDATE studies SET state = 'paused' WHERE id = 1": "a study's state is",
    "UPDATE studies SET direction = 'up' WHERE id = 1": "a study's state is",
    "UPDATE studies SET steps = steps + 1 WHERE id = 2": "a study's steps are those of its trials",
    "UPDATE studies SET state = 'finished' WHERE id = 2": "a finished study has no trial",
    f"UPDATE trials SET study_id = 9 WHERE id = {FIRST}": "a trial belongs to a study",
    f"UPDATE trials SET number = 77 WHERE id = {FIRST}": "a trial's id is its study's",
    f"UPDATE trials SET state = 'lost' WHERE id = {FIRST}": "a trial's state is",
    f"UPDATE trials SET objective = NULL WHERE id = {FIRST}": "a finished trial has an objective",
    f"UPDATE trials SET error = NULL WHERE id = {FIRST + studies.FAILED}": "a diverged or failed trial says why",
    f"UPDATE trials SET objective = 1 WHERE id = {FIRST + studies.DIVERGED}": "only a finished or pruned",
    f"UPDATE trials SET objective = 9e999 WHERE id = {FIRST}": "only a finished or pruned",
    f"UPDATE trials SET finished_at = NULL WHERE id = {FIRST}": "a trial that ended says when",
    f"UPDATE trials SET worker = NULL WHERE id = {FIRST + 16}": "a running trial says where",
    f"UPDATE trials SET parent = 99, parent_step = 1 WHERE id = {FIRST + 8}": "a trial goes on from",
    f"UPDATE trials SET parent = 8, parent_step = 1 WHERE id = {FIRST + 8}": "a trial goes on from",
    f"UPDATE trials SET parent = 2 WHERE id = {FIRST + 8}": "a trial goes on from",
    f"DELETE FROM trials WHERE id = {FIRST + 9}": "a metric belongs to a trial",
    f"UPDATE metrics SET value = 9e999 WHERE trial_id = {FIRST}": "a metric's value is finite",
    f"UPDATE trials SET steps = 100 WHERE id = {FIRST}": "a trial has metrics up to",
    f"UPDATE trials SET state = 'queued', steps = 120 WHERE id = {FIRST + 17}": "a trial that waits is",
    "UPDATE workers SET study_id = 9": "a worker belongs to a study",
    f"UPDATE architectures SET trial_id = {FIRST + 500} WHERE id = 4": "an architecture belongs to",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("statement", FAULTS)
def test_each_broken_rule_is_found_with_what_breaks_it(url: str, search: Search, statement: str):
    fill(url)
    out, _ = search("db", "check", "--storage", url)
    assert out.splitlines()[-1].endswith("rules looked at")
    unchecked(url, statement.replace("9e999", "'Infinity'") if url.startswith("postgres") else statement)
    lines = search("db", "check", "--storage", url, status=1)[0].splitlines()
    if "refers to" not in lines[0]:  # SQLite's own check comes first
        assert any(line.startswith(f"broken: {FAULTS[statement]}") for line in lines), lines
    assert ": broken, " in lines[-1]


def test_trials_under_a_dead_controller_are_noted_and_no_fault(url: str, search: Search):
    with studies.running(url):
        assert "note" not in search("db", "check", "--storage", url)[0]
    out, _ = search("db", "check", "--storage", url)
    assert out.startswith("note: study demo is running with 4 running trials, but no process is at it; resume it with")


def test_broken_json_and_a_number_that_two_trials_have_are_found(tmp_path: Path, search: Search):
    url = f"sqlite:///{tmp_path}/graft.db"
    fill(url)
    unchecked(url, "UPDATE trials SET params = '{' WHERE number = 3")
    assert (
        "params in the row of trials with id 2000000003 is '{'; it must be JSON"
        in search("db", "check", "--storage", url, status=1)[0]
    )
    columns = ", ".join(column for column in storage.schema.trials.columns.keys() if column != "id")  # noqa: SIM118
    unchecked(
        url,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'UNIQUE (study_id, number)', 'CHECK (1)') WHERE name = 'trials'",
        "DELETE FROM sqlite_master WHERE name LIKE 'sqlite_autoindex_trials%'",
    )
    unchecked(url, f"INSERT INTO trials (id, {columns}) SELECT id + 900, {columns} FROM trials WHERE number = 5")
    out, _ = search("db", "check", "--storage", url, status=1)
    assert "number is its own" in out or "the file is damaged" in out


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_page_is_found_and_never_gives_a_traceback(tmp_path: Path, search: Search, seed: int):
    path = tmp_path / "graft.db"
    with controlled(f"sqlite:///{path}") as study:
        study.start([make_trial(n) for n in range(200)], "w")
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    start = chance.randrange(4096, len(content) - 8192)
    content[start : start + 4096] = chance.randbytes(4096)
    path.write_bytes(content)
    out, error = search("db", "check", "--storage", "graft.db", status=(1, 2))
    assert "broken: " in out or error.count("\n") == 1


# --- backup


@pytest.mark.long
def test_a_backup_has_every_row_and_the_same_ids(url: str, search: Search, tmp_path: Path):
    fill(url)
    search("db", "backup", "copy.db", "--storage", url)
    target = f"sqlite:///{tmp_path}/copy.db"
    assert contents(target) == contents(url)
    assert raw(target, "SELECT id, name FROM studies ORDER BY id") == [(1, "first"), (2, "demo"), (3, "last")]
    assert raw(target, "PRAGMA integrity_check") == [("ok",)]
    assert raw(target, "PRAGMA journal_mode") == [("delete",)]  # one file, readable from a read-only place
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "copy"))] == ["copy.db"]
    with open_store(target) as store:  # and it can be gone on with
        store.create_study(
            NewStudy(
                "more", space="", space_hash="", objective=studies.OBJECTIVE, seed=0, trials=1, version="", numerics=1
            )
        )


def test_a_backup_never_takes_a_name_that_is_taken(tmp_path: Path, search: Search):
    fill(f"sqlite:///{tmp_path}/graft.db")
    for taken in ("graft.db", "there.db", "log.db"):
        (tmp_path / "there.db").write_text("precious")
        (tmp_path / "log.db-wal").write_text("of another database")
        assert "exists; name another file" in search("db", "backup", taken, status=2)[1]
    assert (tmp_path / "there.db").read_text() == "precious"
    assert "does not exist" in search("db", "backup", "nosuch/copy.db", status=2)[1]


def test_an_old_sqlite_database_can_be_backed_up_before_it_is_brought_up(tmp_path: Path, search: Search):
    make_version(f"sqlite:///{tmp_path}/old.db", "0001")
    search("db", "backup", "copy.db", "--storage", "old.db")
    assert version_of(f"sqlite:///{tmp_path}/copy.db") == "0001"
    raw(f"sqlite:///{tmp_path}/foreign.db", "CREATE TABLE theirs (i int)")
    assert "is not a Graft database" in search("db", "backup", "x.db", "--storage", "foreign.db", status=2)[1]
    assert not (tmp_path / "x.db").exists()


@pytest.mark.long
def test_a_backup_taken_while_a_launch_writes_is_of_one_moment(url: str, tmp_path: Path):
    """Each step writes one metric of each of 50 trials in one transaction: a mixture would show uneven counts."""
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(50)], "w")
        ended = threading.Event()

        def write() -> None:
            step = 0
            while not ended.is_set():
                step += 1
                study.record([make_report(n, step) for n in range(50)])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for index in range(4):
                time.sleep(0.1)
                backup(url, tmp_path / f"{index}.db")
        finally:
            ended.set()
            writer.join()
    furthest = 0
    for index in range(4):
        copied = f"sqlite:///{tmp_path}/{index}.db"
        [(counted, trials)] = raw(
            copied,
            "SELECT count(DISTINCT steps), count(*) FROM trials JOIN (SELECT trial_id, count(*) AS n, max(step) AS m"
            " FROM metrics GROUP BY trial_id) ON trial_id = id AND n = 2 * steps AND m = steps",
        )
        assert (counted, trials) == (1, 50)
        [(steps,)] = raw(copied, "SELECT max(steps) FROM trials")
        assert steps > furthest
        furthest = steps


# --- copy


@pytest.mark.long
def test_a_study_copied_there_and_back_is_the_same_to_the_last_column(
    url: str, other: str, tmp_path: Path, search: Search
):
    fill(url)
    _, said = search("db", "copy", url, other, "--study", "demo")
    assert said == "demo: 20 trials and 112 metrics copied\n"
    assert contents(other) == contents(url)
    assert raw(other, "SELECT name FROM studies") == [("demo",)]
    search("db", "copy", other, f"{tmp_path}/third.db")
    assert contents(f"sqlite:///{tmp_path}/third.db") == contents(url)
    search("db", "check", "--storage", other)


@pytest.mark.long
def test_a_whole_database_is_copied_and_a_second_time_nothing_is(url: str, other: str, search: Search):
    fill(url)
    search("db", "copy", url, other)
    for study in ("first", "demo", "last"):
        assert contents(other, study) == contents(url, study)
    _, said = search("db", "copy", url, other)
    assert said.count("are there already, the same") == 3
    assert raw(other, "SELECT count(*) FROM studies") == [(3,)]


@pytest.mark.long
def test_a_name_that_is_taken_is_refused_before_anything_is_written(url: str, other: str, search: Search):
    fill(url)
    with open_store(other) as store:
        new_study(store, "last")
    raw(other, "UPDATE studies SET seed = 8")
    for arguments in ((), ("--study", "last")):
        _, error = search("db", "copy", url, other, *arguments, status=2)
        assert "study 'last' exists already in" in error
        assert raw(other, "SELECT name FROM studies") == [("last",)]
    _, error = search("db", "copy", url, other, "--study", "nosuch", status=2)
    assert "study 'nosuch' does not exist; there are first, demo, last" in error


@pytest.mark.long
def test_studies_already_in_the_target_keep_their_rows(url: str, other: str, search: Search):
    fill(url)
    with open_store(other) as store:
        for name in ("a", "b", "c"):
            new_study(store, name)
        studies.write_study(store, "mine")
    before = contents(other, "mine")
    search("db", "copy", url, other)
    assert contents(other, "mine") == before
    assert contents(other) == contents(url)


def test_a_copy_goes_on_where_its_study_was(url: str, other: str):
    with controlled_with_store(url) as (store, study):
        study.start([make_trial(n) for n in range(4)], "w")
        study.record([make_report(n, 10) for n in range(4)])
    list(copy(url, other))
    with open_store(other) as store:
        [(key,)] = raw(other, "SELECT id FROM studies")
        study = store.take_control(key, policy="full", objective=studies.OBJECTIVE)
        assert study.queries.running() == held(0, 1, 2, 3)
        assert [trial.number for trial in study.rescue(held(0, 1, 2, 3))] == [0, 1, 2, 3]
        assert new_study(store, "next") != key


def test_a_copy_has_a_folder_of_checkpoints_of_its_own(tmp_path: Path):
    """Otherwise each of the two would delete the files of the other."""
    addresses = [f"sqlite:///{tmp_path}/{name}.db" for name in ("original", "copy", "again")]
    with open_store(addresses[0]) as store:
        new_study(store, "demo")
    assert [copied.new for copied in copy(addresses[0], addresses[1])] == [True]
    assert [copied.new for copied in copy(addresses[0], addresses[1])] == [False]
    list(copy(addresses[1], addresses[2]))
    folders = set[str]()
    for address in addresses:
        with open_reader(address) as reader:
            folders.add(folder_of(reader.study("demo").row))
    assert len(folders) == 3
    assert all(folder.startswith("demo-") for folder in folders)


def test_a_copy_that_a_trigger_falsifies_is_undone(tmp_path: Path):
    """What the target stores is read again; a target that changes a number is told of, and keeps nothing."""
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    open_store(target).close()
    raw(
        target,
        "CREATE TRIGGER liar AFTER INSERT ON metrics WHEN new.value > 0.3 BEGIN"
        " UPDATE metrics SET value = 0.3 WHERE trial_id = new.trial_id AND step = new.step AND name = new.name; END",
    )
    with pytest.raises(StorageError, match="the copy differs in metrics; nothing of it was kept"):
        list(copy(source, target, "demo"))
    for table in TABLES:
        assert raw(target, f"SELECT count(*) FROM {table}") == [(0,)]


def test_what_a_database_cannot_hold_ends_the_copy_in_one_line(tmp_path: Path, search: Search, postgres: Server):
    source = f"sqlite:///{tmp_path}/graft.db"
    fill(source)
    raw(source, "UPDATE trials SET error = 'a' || char(0) || 'b' WHERE number = 14")
    with postgres.database() as target:
        _, error = search("db", "copy", source, target, "--study", "demo", status=2)
        assert error.count("\n") == 1
        assert "NUL" in error
        assert raw(target, "SELECT count(*) FROM studies") == [(0,)]


# --- kill -9

LARGE = 60
"""Trials; with 40 steps each they are copied in a tenth of a second, which leaves moments to be killed in."""

COPYING = """
import os, sys
from pathlib import Path
from storage.copying import backup, copy

print("ready", flush=True)
sys.stdin.readline()
what, source, target = sys.argv[1:]
if what == "backup":
    backup(source, Path(target))
else:
    list(copy(source, target))
"""


@pytest.fixture
def large(url: str) -> str:
    with open_store(url) as store:
        for name in ("one", "two", "three"):
            study = store.take_control(new_study(store, name), policy="full", objective=studies.OBJECTIVE)
            study.start([make_trial(n) for n in range(LARGE)], "w")
            for step in range(1, 41):
                study.record([make_report(n, step) for n in range(LARGE)])
    return url


def killed_after(seconds: float, what: str, source: str, target: str) -> bool:
    """Whether it was still at work."""
    command = [sys.executable, "-c", COPYING, what, source, target]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGKILL)
        return process.wait() == -signal.SIGKILL


@pytest.mark.long
def test_a_backup_killed_at_any_moment_leaves_no_file_or_a_whole_one(large: str, tmp_path: Path):
    target = tmp_path / "copy.db"
    killed = 0
    for attempt in range(8):
        killed += killed_after(0.01 * 2**attempt, "backup", large, str(target))
        if target.exists():
            assert contents(f"sqlite:///{target}", "two") == contents(large, "two")
            target.unlink()
    assert killed > 0
    backup(large, target)
    assert contents(f"sqlite:///{target}", "three") == contents(large, "three")


@pytest.mark.long
def test_a_copy_killed_at_any_moment_leaves_whole_studies_and_goes_on(large: str, other: str):
    killed = 0
    for attempt in range(6):
        killed += killed_after(0.04 * 2**attempt, "copy", large, other)
        with suppress(sqlite3.Error, psycopg.Error):  # it may have been killed before there was a table
            there = [name for (name,) in raw(other, "SELECT name FROM studies")]
            for name in there:
                assert contents(other, name) == contents(large, name)
    assert killed > 0
    assert {study.name for study in copy(large, other)} == {"one", "two", "three"}
    assert contents(other, "three") == contents(large, "three")
    with open_reader(other) as reader:
        assert reader.studies()["name"].to_list() == ["one", "two", "three"]
