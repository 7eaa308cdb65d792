"""Whole copies: a database into one file, studies from one database into another.

A study is read as of one moment, in a form that does not depend on the ids that a database gave its rows; it is
written, read again and compared in one transaction, so that the target has all of it or nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, select
from sqlalchemy.engine import make_url
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
"""Column -> value, without the ids that differ from database to database: trials go by their numbers, architectures by
their order."""

Batch = tuple[Table, Sequence[Any]]
"""Rows of one table; of metrics tuples: number, step, name, variant, condition, value."""

_BATCH = 5_000


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A study in the target."""

    name: str
    trials: int
    metrics: int
    new: bool
    """Whether it was written now; otherwise the same study was there already, number by number."""


def copy(source: str, target: str, study: str | None = None) -> Generator[Copied]:
    """Copy the study, or every study that is not there yet, into another database, which is created or brought up.

    Each study is committed before it is yielded; after a kill the same call does what is left. Raises StudyError,
    before anything is written, if a name is taken: the one asked for, or any by another study. Raises StorageError
    where a copy would not give the same rows; nothing is left of that study.
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
                raise StudyError(f"study {taken[0]!r} exists already in {database.name}; nothing was copied")
            for name, number in wanted.items():
                if name in same:
                    yield _summarise(name, _count(old, number), new=False)
                else:
                    yield _copy_study(old, number, database, new)


def backup(source: str, target: Path) -> Path:
    """Write the whole database, as of one moment, to a new SQLite file; a launch may write meanwhile.

    The file appears under its name when it is complete and on the disk. Raises StorageError if the file
    exists, or cannot be written.
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
        whole = Sqlite(make_url(f"sqlite:///{part}"))
        whole.settle()
        if damage := whole.damage():
            raise StorageError(f"{target}: the copy is damaged ({damage[0]}); nothing was written")
        synchronise(part)
        part.rename(target)
        synchronise(target.parent)
    return target


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
    """Name -> id, oldest first; StudyError if the study that is asked for is not there."""
    found = {name: number for name, number in connection.execute(select(studies.c.name, studies.c.id).order_by("id"))}  # noqa: C416
    if study is None:
        return found
    if study not in found:
        raise StudyError(f"study {study!r} does not exist; there are {', '.join(found) or 'none'}")
    return {study: found[study]}


def _copy_study(old: Connection, number: int, database: Database, new: Connection, kept: int | None = None) -> Copied:
    """Write a study, under the id `kept` or the next one, and compare it before it is committed."""
    sent = _Tally()
    with database.readable_errors(), new.begin():
        try:
            written = _write(database, new, sent.count_rows(_rows(old, number)), kept)
        except IntegrityError as error:
            raise StorageError(f"{database.name}: a copied row breaks a rule of the tables: {error.orig}") from error
        differs = sent.differences(_count(new, written))
        if differs:
            raise StorageError(f"{database.name}: the copy differs in {', '.join(differs)}; nothing of it was kept")
        name = str(new.scalar(select(studies.c.name).where(studies.c.id == written)))
    return _summarise(name, sent, new=True)


def _summarise(name: str, tally: _Tally, *, new: bool) -> Copied:
    return Copied(name=name, trials=tally.counts.get("trials", 0), metrics=tally.counts.get("metrics", 0), new=new)


class _Tally:
    """How many rows of each table, and a checksum of them that does not depend on their order.

    The two databases sort texts differently, so a checksum is the sum of the rows' hashes.
    """

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
        tables = sorted(self.sums.keys() | other.sums.keys())
        return [
            name
            for name in tables
            if (self.counts.get(name), self.sums.get(name)) != (other.counts.get(name), other.sums.get(name))
        ]


def _hash(row: Row | Sequence[Any]) -> int:
    plain = sorted((name, _normalise(value)) for name, value in row.items()) if isinstance(row, dict) else tuple(row)
    return int.from_bytes(hashlib.blake2b(repr(plain).encode(), digest_size=16).digest())


def _normalise(value: Any) -> Any:
    """Return a value as both databases give it."""
    if isinstance(value, dict | list):
        return canonical_json(value)
    return value.isoformat() if isinstance(value, datetime) else value


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
        yield (
            architectures,
            [{**_without(row, "id", "study_id"), "trial_id": row["trial_id"] - first} for row in rows],
        )
    for rows in _select(connection, trials, trials.c.study_id == study_id):
        yield (
            trials,
            [{**_without(row, "id", "study_id"), "architecture_id": indices[row["architecture_id"]]} for row in rows],
        )
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
    for rows in connection.execute(ordered, execution_options={"yield_per": _BATCH}).mappings().partitions():
        yield [
            {name: read_time(value) if isinstance(value, datetime) else value for name, value in row.items()}
            for row in rows
        ]


def _without(row: Row, *columns: str) -> Row:
    return {name: value for name, value in row.items() if name not in columns}


def _write(database: Database, connection: Connection, batches: Iterable[Batch], kept: int | None) -> int:
    """Write a study's rows with the ids that they get in this database; return the study's."""
    found = iter(batches)
    _, [study] = next(found)
    own = {} if kept is None else {"id": kept}
    study_id: int = connection.execute(insert(studies).values(**study, **own).returning(studies.c.id)).scalar_one()
    first = trial_id(study_id, 0)
    architecture_ids: dict[int | None, int | None] = {None: None}
    """Index of an architecture -> the id that it has here."""
    for table, rows in found:
        if table is architectures:
            placed = [{**row, "study_id": study_id, "trial_id": first + row["trial_id"]} for row in rows]
            statement = insert(architectures).returning(architectures.c.id, sort_by_parameter_order=True)
            architecture_ids.update(enumerate(connection.scalars(statement, placed), len(architecture_ids) - 1))
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
            connection.execute(insert(checkpoints), [{**row, "trial_id": first + row["trial_id"]} for row in rows])
        else:
            connection.execute(insert(table), [{**row, "study_id": study_id} for row in rows])
    return study_id
