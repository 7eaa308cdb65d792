"""Opening, refusing and surviving: locks, versions, places, full disks, killed writers, and what errors give away."""

from __future__ import annotations

import importlib.util
import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect

from spaces.errors import StorageError, StudyError
from spaces.records import QueuedTrial
from storage import Store, migrate_if_older, open_reader, open_store
from storage.databases import find_database
from storage.databases.sqlite_file import filesystem_of
from storage.schema import VERSION, VERSION_TABLE, metadata
from tests.support.databases import (
    OBJECTIVE,
    Server,
    bring_to,
    controlled,
    controlled_with_store,
    held,
    make_first_version,
    make_trial,
    raw,
)
from tests.support.storage_safety import BATCHES, ROOT, run


def executed(store: Store, sql: str) -> object:
    """Return the first value of what a store's own connection answers."""
    return store._session.transact(lambda connection: connection.exec_driver_sql(sql).scalar())


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_everything_acknowledged_survives_kill_9(url: str):
    with run(BATCHES, url) as writer:
        assert writer.stdout
        lines = [next(writer.stdout) for _ in range(30)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    acknowledged = int([line for line in lines if line.endswith("\n")][-1])
    stored = {step: rows for step, rows in raw(url, "SELECT step, count(*) FROM metrics GROUP BY step")}  # noqa: C416
    assert stored.keys() >= set(range(1, acknowledged + 1))
    assert set(stored.values()) == {2 * 50}  # no half of a batch
    with open_store(url) as store:
        study = store.take_control(1, policy="full", objective=OBJECTIVE)
        assert study.queries.running() == held(*range(50))


@pytest.mark.long
def test_a_second_launch_is_told_who_runs_the_study(url: str):
    with run(BATCHES, url) as writer:
        assert writer.stdout
        next(writer.stdout)
        with (
            pytest.raises(
                StudyError, match=rf"by process {writer.pid} on .*study|study.* by process {writer.pid}"
            ) as caught,
            open_store(url) as store,
        ):
            store.take_control(1, policy="full", objective=OBJECTIVE)
        assert "stop it first" in one_line(caught.value)
        writer.kill()


def test_a_closed_store_leaves_no_lock(url: str):
    with controlled(url) as study:
        pass
    with open_store(url) as store:
        store.take_control(study.id, policy="full", objective=OBJECTIVE)


def test_a_database_newer_than_the_code_is_refused(url: str):
    open_store(url).close()
    raw(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    for opener in (open_store, open_reader):
        with pytest.raises(StorageError, match=f"has schema 9999, newer than the {VERSION} of this program") as caught:
            opener(url)
        one_line(caught.value)
    raw(url, f"UPDATE {VERSION_TABLE} SET version_num = '{VERSION}'")
    open_store(url).close()  # the refused store gave its locks back


def test_a_reader_refuses_an_older_schema(url: str):
    open_store(url).close()
    raw(url, f"UPDATE {VERSION_TABLE} SET version_num = '0000'")
    with pytest.raises(StorageError, match="has schema 0000, this program reads"):
        open_reader(url)


def test_a_database_of_the_first_version_is_brought_up_with_its_rows(url: str):
    make_first_version(url)
    with pytest.raises(StorageError, match=f"has schema 0001, this program reads {VERSION}; run: search db upgrade"):
        open_reader(url)
    migrate_if_older(url)
    with open_reader(url) as reader:
        [worker] = reader.study("old").workers().iter_rows(named=True)
        assert reader.study("old").row["created_at"].second == 5
        assert reader.study("old").holder() is None
    assert (worker["id"], worker["device"], worker["fence"], worker["steps"], worker["room"]) == (
        "w",
        "cuda:0",
        3,
        0,
        0,
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("version", [f"{number:04}" for number in range(1, int(VERSION))])
def test_a_study_of_every_released_schema_is_brought_up_and_goes_on(url: str, version: str):
    make_first_version(url)
    raw(
        url,
        "INSERT INTO trials (study_id, id, number, state, task, model, seed, steps, fence, params, draws, config,"
        " created_at, group_number) SELECT 1, 1000000003, 3, 'queued', 't', 'm', 7, 0, 1, '{}', '{}', '{}',"
        " '2026-01-02 03:04:05.000000', 0",
    )
    bring_to(url, version)
    migrate_if_older(url)
    assert raw(url, f"SELECT version_num FROM {VERSION_TABLE}") == [(VERSION,)]
    with open_store(url) as store:
        study = store.take_control(1, policy="full", objective=OBJECTIVE)
        [(line, waiting)] = study.queries.queued()
        assert (line[0].number, waiting) == (3, QueuedTrial(3))
        assert study.start([make_trial(3)], "w") == {3: 2}


def test_an_old_database_is_not_brought_up_under_a_writer(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    make_first_version(url)
    database = find_database(url)
    with database.writer(), pytest.raises(StudyError, match="is being written by"):
        migrate_if_older(url)
    database.close()
    assert raw(url, f"SELECT version_num FROM {VERSION_TABLE}") == [("0001",)]


def test_bringing_up_leaves_a_database_alone_that_is_up_or_not_there(url: str, tmp_path: Path):
    with controlled(url):
        migrate_if_older(url)  # somebody is writing it
    with pytest.raises(StorageError, match="there is no such database"):
        migrate_if_older(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
    raw(url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    migrate_if_older(url)
    with pytest.raises(StorageError, match="newer than"):
        open_reader(url)


def test_a_database_of_another_program_is_refused_and_left_alone(url: str):
    if url.startswith("sqlite"):
        raw(url, "PRAGMA journal_mode=WAL")
    raw(url, "CREATE TABLE trials (theirs int)")
    with pytest.raises(StorageError, match="is not a Graft database"):
        open_reader(url)
    with pytest.raises(StorageError, match="already exists"):
        open_store(url)
    assert raw(url, "SELECT * FROM trials") == []
    with pytest.raises(Exception, match="studies"):
        raw(url, "SELECT * FROM studies")  # the migration was undone as a whole


def test_the_migrations_lead_to_the_tables_of_the_schema(url: str):
    bring_to(url, "head")
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    engine.dispose()
    assert raw(url, f"SELECT version_num FROM {VERSION_TABLE}") == [(VERSION,)]


def test_a_new_database_is_as_the_migrations_leave_one(url: str):
    """Its columns in their order with types and defaults, its keys, its indexes and its rules."""
    bring_to(url, "head")
    brought = described(url)
    for table in (VERSION_TABLE, *(table.name for table in reversed(metadata.sorted_tables))):
        raw(url, f"DROP TABLE {table}")
    open_store(url).close()
    assert described(url) == brought


def _texts(rule: Any) -> dict[str, str]:
    return {name: str(value) for name, value in rule.get("dialect_options", {}).items()}


def described(url: str) -> dict[str, Any]:
    engine = create_engine(url)
    inspector = inspect(engine)

    def of(table: str) -> dict[str, Any]:
        columns = [{**column, "type": str(column["type"])} for column in inspector.get_columns(table)]
        rules = [
            inspector.get_foreign_keys,
            inspector.get_unique_constraints,
            inspector.get_check_constraints,
            inspector.get_indexes,
        ]
        # The condition of an index is an object that has no text but by str().
        named = [sorted(str({**entry, "dialect_options": _texts(entry)}) for entry in rule(table)) for rule in rules]
        return {"columns": columns, "key": inspector.get_pk_constraint(table)["constrained_columns"], "rules": named}

    tables = {table: of(table) for table in inspector.get_table_names()}
    engine.dispose()
    return tables


def test_the_newest_migration_is_the_version_of_the_code():
    assert ScriptDirectory(str(ROOT / "storage" / "migrations")).get_current_head() == VERSION


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://me:hunter2@h/db", "storage mysql://... is not supported; use sqlite:///FILE or postgresql://"),
        ("me:hunter2@h/db", "the storage is not a URL; use sqlite:///FILE"),
        ("postgresql://me:hunter2@h:port/db", "the storage is not a URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql://me:hunter2@127.0.0.1:1/db?password=hunter2", "postgresql://me:***@127.0.0.1:1/db: connection"),
    ],
)
def test_a_bad_url_is_explained_without_its_password(url: str, words: str):
    for opener in (open_store, open_reader):
        with pytest.raises(StorageError) as caught:
            opener(url)
        assert words in one_line(caught.value)
        assert "hunter2" not in "".join(map(repr, chain_of(caught.value)))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def test_a_missing_psycopg_is_explained(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec

    def find_all_but_psycopg(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "psycopg" else find(name, package)

    monkeypatch.setattr("storage.databases.postgres.find_spec", find_all_but_psycopg)
    with pytest.raises(StorageError, match=r"pip install 'graft-search\[postgres\]'"):
        open_store("postgresql://me:hunter2@h/db")


@pytest.mark.parametrize("setting", ["synchronous_commit", "fsync", "full_page_writes"])
def test_a_postgresql_that_may_lose_commits_is_refused(postgres: Server, setting: str):
    postgres.execute(f"ALTER SYSTEM SET {setting} = off")
    postgres.execute("SELECT pg_reload_conf()")
    try:
        with postgres.database() as url:
            wait_for(url, setting, "off")
            with pytest.raises(StorageError, match=f"{setting} is off, so a commit may be lost"):
                open_store(url)
    finally:
        postgres.execute(f"ALTER SYSTEM RESET {setting}")
        postgres.execute("SELECT pg_reload_conf()")
        wait_for(postgres.url("postgres"), setting, "on")


def wait_for(url: str, setting: str, value: str) -> None:
    while raw(url, f"SHOW {setting}") != [(value,)]:
        pass


def test_sqlite_is_synchronous_and_checks_references(tmp_path: Path):
    names = ("synchronous", "foreign_keys", "journal_mode")
    with controlled_with_store(f"sqlite:///{tmp_path}/graft.db") as (store, _):
        values = [executed(store, f"PRAGMA {name}") for name in names]
    assert values == [2, 1, "wal"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (".", "is a folder; the storage must be a file"),
        ("nosuch/graft.db", "nosuch does not exist"),
        ("text", "this file is not a Graft database"),
    ],
)
def test_a_place_that_cannot_hold_a_database_is_explained(tmp_path: Path, path: str, words: str):
    (tmp_path / "text").write_text("not a database " * 500)
    with pytest.raises(StorageError) as caught:
        open_store(f"sqlite:///{tmp_path / path}")
    assert words in one_line(caught.value)
    assert (tmp_path / "text").read_text().startswith("not a database")


def test_a_missing_database_is_not_created_by_reading(tmp_path: Path):
    with pytest.raises(StorageError, match="there is no such database; `search launch` creates one"):
        open_reader(f"sqlite:///{tmp_path}/graft.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_database_cannot_be_read(tmp_path: Path):
    (tmp_path / "text").write_text("not a database " * 500)
    with pytest.raises(StorageError, match="this file is not a Graft database"):
        open_reader(f"sqlite:///{tmp_path}/text")


@pytest.mark.long
def test_a_folder_that_cannot_be_written_is_explained():
    program = """
        import os, sys
        from storage import open_store

        folder = sys.argv[1]
        open_store(f"sqlite:///{folder}.db").close()  # every import done before the right to read them is given up
        os.chmod(folder, 0o555)
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        try:
            open_store(f"sqlite:///{folder}/graft.db")
        except Exception as error:
            print(type(error).__name__, error)
    """
    with tempfile.TemporaryDirectory() as parent:  # not pytest's own folder, which no other user can enter
        os.chmod(parent, 0o755)
        folder = Path(parent, "locked")
        folder.mkdir()
        with run(program, str(folder)) as process:
            answer, _ = process.communicate()
    path = f"{folder}/graft.db"
    assert answer == f"StorageError {path}: cannot write {path}.lock: Permission denied\n"


@pytest.mark.long
def test_a_file_that_may_grow_no_more_keeps_what_was_committed_and_goes_on_when_it_may(tmp_path: Path):
    program = """
        import resource, signal, sys
        from spaces.errors import StorageError
        from tests.support.databases import controlled, make_report, make_trial

        with controlled(sys.argv[1]) as study:
            study.start([make_trial(n) for n in range(100)], "w")
            _, ceiling = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, ceiling))
            step = 0
            try:
                while step < 10_000:
                    study.record([make_report(n, step + 1) for n in range(100)])
                    step += 1
            except StorageError as error:
                print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (ceiling, ceiling))
            study.record([make_report(n, 20_000) for n in range(100)])
            print(step)
    """
    path = tmp_path / "graft.db"
    with run(program, f"sqlite:///{path}") as process:
        answer, _ = process.communicate()
    message, steps = answer.splitlines()
    assert message.startswith(f"{path}: ")
    assert "what was committed before stays" in message
    stored = raw(f"sqlite:///{path}", "SELECT step, count(*) FROM metrics GROUP BY step ORDER BY step")
    assert stored == [(step, 200) for step in (*range(1, int(steps) + 1), 20_000)]
    assert raw(f"sqlite:///{path}", "PRAGMA integrity_check") == [("ok",)]


def test_a_full_disk_is_said_in_words(tmp_path: Path):
    with controlled_with_store(f"sqlite:///{tmp_path}/graft.db") as (store, study):
        executed(store, "PRAGMA max_page_count = 60")  # the same SQLITE_FULL as of a disk without room
        study.start([make_trial(0)], "w")
        with pytest.raises(StorageError, match="no space left on the disk; what was committed before stays"):
            study.start([make_trial(n) for n in range(1, 1000)], "w")
        assert study.queries.counts() == {"running": 1}


@pytest.mark.parametrize(("kind", "network"), [("ext4", False), ("nfs4", True), ("cifs", True), ("fuse.sshfs", True)])
def test_sqlite_is_refused_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, network: bool
):
    device = os.stat(tmp_path).st_dev
    table = tmp_path / "mountinfo"
    ours = f"22 1 {os.major(device)}:{os.minor(device)} / /x rw shared:1 - {kind} a rw"
    table.write_text(f"21 1 0:999 / / rw - tmpfs tmpfs rw\n{ours}\n")
    monkeypatch.setattr("storage.databases.sqlite_file.filesystem_of", lambda folder: filesystem_of(folder, table))  # pyright: ignore
    url = f"sqlite:///{tmp_path}/graft.db"
    if network:
        with pytest.raises(StorageError, match=rf"is on a network file system \({kind}\); use a local disk"):
            open_store(url)
    else:
        open_store(url).close()


def test_the_file_system_of_a_real_folder_is_known():
    assert filesystem_of(Path("/proc")) == "proc"


@pytest.mark.parametrize("sql", ["ATTACH '{}/new.db' AS other", "VACUUM INTO '{}/new.db'", "PRAGMA query_only = OFF"])
def test_a_query_cannot_touch_other_files_of_the_disk(tmp_path: Path, sql: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    with open_reader(url) as reader, pytest.raises(StorageError, match="only SELECT is allowed here"):
        reader.query(sql.format(tmp_path))
    assert not (tmp_path / "new.db").exists()


def test_a_reader_leaves_a_store_free_to_write(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with controlled(url) as study, open_reader(url) as reader:
        reader.study("study").trials()
        study.start([make_trial(0)], "w")
    with sqlite3.connect(tmp_path / "graft.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
