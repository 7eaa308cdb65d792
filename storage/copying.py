"""Copies: a whole database into one file, studies from one database into another.

A study is read as of one moment, in a form without the ids that a database gave its rows; it is
written, read again and compared in one transaction, so that the target has all of it or nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, select
from sqlalchemy.exc import IntegrityError

from spaces.errors import StorageError, StudyError
from spaces.plugins import canonical_json
from storage import migrations
from storage.databases import find_database
from storage.databases.database import Database
from storage.databases.disk import synchronise
from storage.databases.sqlite import Sqlite
from storage.row_values import read_time
from storage.schema import KEYED_BY_STUDY, architectures, checkpoints, metrics, studies, trial_id, trials

Row = dict[str, Any]
"""Column -> value, without the ids that differ from database to database: trials go by their
numbers, architectures by their order."""

Batch = tuple[Table, Sequence[Any]]
"""Rows of one table; of metrics tuples: number, step, name, variant, condition, value."""

_BATCH = 5_000
_FOLDER = "checkpoint_folder"
"""The column that differs in a copy or backup: with the original's folder it would delete the original's files."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A study in the target."""

    name: str
    trials: int
    metrics: int
    new: bool
    """True if it was written now; else the same study was there already, number by number."""


def copy(source: str, target: str, study: str | None = None) -> Generator[Copied]:
    """Copy a study, or each one that is not there yet, into another database, new or older.

    Each study is committed before it is yielded; after a kill the same call does the rest. Raises
    StudyError, before anything is written, if a name is taken: the `study`, or any by another
    study. Raises StorageError, and leaves nothing of a study, if its copy would differ.
    """
    with _snapshot(source) as old:
        wanted = _ids(old, study)  # before the other database is made
        with _writer(target) as (database, new):
            with database.readable_errors(), new.begin():
                there = _ids(new, None)
                both = wanted.keys() & there.keys()
                same = {name for name in both if not _count(old, wanted[name]).differences(_count(new, there[name]))}
            taken = sorted(both if study else both - same)
            if taken:
                problem = f"study {taken[0]!r} exists already in {database.name}"
                raise StudyError(f"{problem}; nothing was copied")
            for name, number in wanted.items():
                if name in same:
                    yield _summarise(name, _count(old, number), new=False)
                else:
                    yield _copy_study(old, number, database, new)


def backup(source: str, target: Path) -> Path:
    """Write the whole database, as of one moment, to a new SQLite file, even during a launch.

    It appears when complete and on the disk. StorageError if it exists, or cannot be written.
    """
    for path in (target, Path(f"{target}-wal"), Path(f"{target}-journal")):
        if path.exists():
            raise StorageError(f"{path} exists; name another file, or remove it first")
    if not target.parent.is_dir():
        raise StorageError(f"{target}: the folder {target.parent} does not exist")
    database = find_database(source)
    with database.readable_errors(), tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as aside:
        part = Path(aside, "part.db")
        if isinstance(database, Sqlite):
            database.copy_pages(part)
        else:
            with _snapshot(source) as old, _writer(f"sqlite:///{part}") as (copied, new):
                for number in _ids(old, None).values():
                    _copy_study(old, number, copied, new, number)
        whole = Sqlite(str(part))
        whole.settle()
        if damage := whole.damage():
            raise StorageError(f"{target}: the copy is damaged ({damage[0]}); nothing was written")
        _change_folders(part)
        synchronise(part)
        part.rename(target)
        synchronise(target.parent)
    return target


def _change_folders(part: Path) -> None:
    """Give each study of a copied file a checkpoint folder of its own, as far as its schema has the column."""
    with closing(sqlite3.connect(part)) as connection, connection:
        if any(name == _FOLDER for _, name, *_ in connection.execute("PRAGMA table_info(studies)")):
            connection.execute(f"UPDATE studies SET {_FOLDER} = name || '-' || lower(hex(randomblob(8)))")


@contextmanager
def _snapshot(url: str) -> Generator[Connection]:
    """Open a database of this code's schema in one reading transaction."""
    database = find_database(url)
    with database.snapshot() as connection, database.readable_errors(), connection.begin():
        migrations.check(connection, database.name)
        yield connection


@contextmanager
def _writer(url: str) -> Generator[tuple[Database, Connection]]:
    """Open the writing end of a database, created if it is not there."""
    database = find_database(url)
    connection = database.writer()
    try:
        with database.readable_errors(), connection.begin():
            migrations.upgrade(connection, database)
        yield database, connection
    finally:
        connection.close()
        database.close()


def _ids(connection: Connection, study: str | None) -> dict[str, int]:
    """Return name -> id, oldest first; StudyError if `study` is not there."""
    these = connection.execute(select(studies.c.name, studies.c.id).order_by("id"))
    ids = {name: number for name, number in these}  # noqa: C416
    if study is None:
        return ids
    if study not in ids:
        raise StudyError(f"study {study!r} does not exist; there are {', '.join(ids) or 'none'}")
    return {study: ids[study]}


def _copy_study(old: Connection, number: int, database: Database, new: Connection, kept: int | None = None) -> Copied:
    """Write a study, under the id `kept` or the next one, and compare it before it is committed."""
    sent = _Tally()
    with database.readable_errors(), new.begin():
        try:
            written = _write(database, new, sent.count_rows(_rows(old, number)), kept)
        except IntegrityError as error:
            problem = f"a copied row breaks a rule of the tables: {error.orig}"
            raise StorageError(f"{database.name}: {problem}") from error
        differs = sent.differences(_count(new, written))
        if differs:
            problem = f"the copy differs in {', '.join(differs)}; nothing of it was kept"
            raise StorageError(f"{database.name}: {problem}")
        name = str(new.scalar(select(studies.c.name).where(studies.c.id == written)))
    return _summarise(name, sent, new=True)


def _summarise(name: str, tally: _Tally, *, new: bool) -> Copied:
    counts = tally.counts
    trials, metrics = counts.get("trials", 0), counts.get("metrics", 0)
    return Copied(name=name, trials=trials, metrics=metrics, new=new)


class _Tally:
    """The number of rows of each table, and a sum of their hashes, whatever their order."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.sums: dict[str, int] = {}

    def count_rows(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same batches; each is added before it is given."""
        for table, rows in batches:
            total = sum(map(_hash, rows), self.sums.get(table.name, 0))
            self.sums[table.name] = total % (1 << 128)
            self.counts[table.name] = self.counts.get(table.name, 0) + len(rows)
            yield table, rows

    def differences(self, other: _Tally) -> list[str]:
        """Return the tables that are not the same in both."""
        ours, theirs = ({key: (tally.counts[key], tally.sums[key]) for key in tally.sums} for tally in (self, other))
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def _hash(row: Row | Sequence[Any]) -> int:
    plain: Any = tuple(row)
    if isinstance(row, dict):
        row = _without(row, _FOLDER)
        # Values in the form of both databases.
        texts = {key: canonical_json(value) for key, value in row.items() if isinstance(value, dict | list)}
        times = {key: value.isoformat() for key, value in row.items() if isinstance(value, datetime)}
        plain = sorted((row | texts | times).items())
    return int.from_bytes(hashlib.blake2b(repr(plain).encode(), digest_size=16).digest())


def _count(connection: Connection, study_id: int) -> _Tally:
    tally = _Tally()
    for _ in tally.count_rows(_rows(connection, study_id)):
        pass
    return tally


def _rows(connection: Connection, study_id: int) -> Iterator[Batch]:
    """Yield all rows of a study, table by table: first its own, then those of all others."""
    first, after = trial_id(study_id, 0), trial_id(study_id + 1, 0)
    indices: dict[int | None, int | None] = {None: None}
    for rows in _select(connection, studies, studies.c.id == study_id):
        yield studies, [_without(row, "id") for row in rows]
    for rows in _select(connection, architectures, architectures.c.study_id == study_id):
        indices |= {row["id"]: index for index, row in enumerate(rows, len(indices) - 1)}
        learned = [_without(row, "id", "study_id") for row in rows]
        yield architectures, [{**row, "trial_id": row["trial_id"] - first} for row in learned]
    for rows in _select(connection, trials, trials.c.study_id == study_id):
        records = [_without(row, "id", "study_id") for row in rows]
        key = "architecture_id"
        yield trials, [{**row, key: indices[row[key]]} for row in records]
    numbered = select((metrics.c.trial_id - first).label("number"), *list(metrics.columns)[1:])
    mine = numbered.where(metrics.c.trial_id >= first, metrics.c.trial_id < after)
    for batch in connection.execute(mine, execution_options={"yield_per": _BATCH}).partitions():
        yield metrics, batch
    for rows in _select(connection, checkpoints, checkpoints.c.trial_id.between(first, after - 1)):
        yield checkpoints, [{**row, "trial_id": row["trial_id"] - first} for row in rows]
    for table in KEYED_BY_STUDY:
        for rows in _select(connection, table, table.c.study_id == study_id):
            yield table, [_without(row, "study_id") for row in rows]


def _select(connection: Connection, table: Table, condition: ColumnElement[bool]) -> Iterator[list[Row]]:
    ordered = select(table).where(condition).order_by(*table.primary_key)
    cursor = connection.execute(ordered, execution_options={"yield_per": _BATCH})
    for rows in cursor.mappings().partitions():
        yield [{k: read_time(x) if isinstance(x, datetime) else x for k, x in row.items()} for row in rows]


def _without(row: Row, *columns: str) -> Row:
    return {name: value for name, value in row.items() if name not in columns}


def _write(database: Database, connection: Connection, batches: Iterable[Batch], kept: int | None) -> int:
    """Write a study's rows with new ids, and return the study's: `kept`, or a new one of a copy."""
    stream = iter(batches)
    _, [study] = next(stream)
    changed = {_FOLDER: f"{study['name']}-{secrets.token_hex(8)}"} | ({} if kept is None else {"id": kept})
    statement = insert(studies).values({**study, **changed}).returning(studies.c.id)
    study_id: int = connection.execute(statement).scalar_one()
    first = trial_id(study_id, 0)
    architecture_ids: dict[int | None, int | None] = {None: None}
    """Index of an architecture -> its id here."""
    for table, rows in stream:
        if table is architectures:
            placed = [{**row, "study_id": study_id, "trial_id": first + row["trial_id"]} for row in rows]
            returned = insert(architectures).returning(architectures.c.id, sort_by_parameter_order=True)
            ids = connection.scalars(returned, placed)
            architecture_ids.update(enumerate(ids, len(architecture_ids) - 1))
        elif table is trials:
            placed = [
                {
                    **row,
                    "id": first + row["number"],
                    "study_id": study_id,
                    "architecture_id": architecture_ids[row["architecture_id"]],
                }
                for row in rows
            ]
            connection.execute(insert(trials), placed)
        elif table is metrics:
            database.insert_metrics(connection, [(first + number, *more) for number, *more in rows])
        elif table is checkpoints:
            placed = [{**row, "trial_id": first + row["trial_id"]} for row in rows]
            connection.execute(insert(checkpoints), placed)
        else:
            connection.execute(insert(table), [{**row, "study_id": study_id} for row in rows])
    return study_id
