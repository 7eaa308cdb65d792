"""The reading side: typed Polars frames over a connection that cannot write."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import polars as pl
from sqlalchemy import Boolean, Connection, DateTime, Double, Integer, Table

from spaces.errors import StorageError, StudyError
from spaces.messages import no_such
from spaces.plugins.bundles import Bundle
from spaces.records import State
from storage import migrations
from storage import sources as stored_sources
from storage.claims import rows
from storage.databases import find_database
from storage.databases.database import Database, Rows
from storage.schema import NUMBERS_PER_STUDY, changes, fingerprints, sources, studies, trial_id, trials, workers
from storage.sources import StoredBundle

Schema = Mapping[str, pl.DataType]

_TIME = pl.Datetime("us", "UTC")
_CHUNK = 100_000
"""Most rows of a query's answer fetched at once: tuples of Python objects take twenty times the room of a frame."""
BATCH = 20_000
"""Rows that are read, and turned into columns, at once."""
BATCH_OF_TRIALS = 4_000
"""The same of trials, whose JSON is some thousand bytes each."""
LARGEST_ANSWER = 1 << 30
"""Bytes of a query's answer while it is fetched."""
_VALUE = 64
"""Bytes of a Python value beside its text."""


def _dtype(column_type: Any) -> pl.DataType:
    """The Polars type of a column; JSON stays text."""
    if isinstance(column_type, DateTime):
        return _TIME
    if isinstance(column_type, Boolean):
        return pl.Boolean()
    if isinstance(column_type, Double):
        return pl.Float64()
    if isinstance(column_type, Integer):
        return pl.Int64()
    return pl.String()


def _schema(table: Table) -> Schema:
    return {column.name: _dtype(column.type) for column in table.columns}


STUDIES: Schema = _schema(studies)
TRIALS: Schema = _schema(trials)
"""`params`, `draws` and `config` are JSON texts."""
WORKERS: Schema = _schema(workers)
SOURCES: Schema = _schema(sources)
"""`plugins` is a JSON text."""
CHANGES: Schema = _schema(changes)
"""`differences` is a JSON text."""
FINGERPRINTS: Schema = _schema(fingerprints)
"""`sources` is a JSON text."""
METRICS: Schema = {
    "number": pl.Int64(),
    "step": pl.Int64(),
    "name": pl.String(),
    "variant": pl.String(),
    "condition": pl.String(),
    "value": pl.Float64(),
}
ARCHITECTURES: Schema = {
    "id": pl.Int64(),
    "number": pl.Int64(),
    "task": pl.String(),
    "component": pl.String(),
    "low": pl.Float64(),
    "high": pl.Float64(),
    "knots": pl.List(pl.Float64()),
    "objective": pl.Float64(),
}


def open_reader(url: str, seconds: float | None = None) -> Reader:
    """The reading end of a database; raises StorageError if there is none, or it is not one of this program's.

    `seconds`: how long the database may work on one answer; None: as long as it takes.
    """
    database = find_database(url)
    reader = Reader(database, database.reader(seconds))
    try:
        reader.check()
    except BaseException:
        reader.close()
        raise
    return reader


class Reader:
    """Reads one database. Nothing sent through it can change a row."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.database = database
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection."""
        self._connection.close()

    def check(self) -> None:
        """Raise StorageError unless the database has the schema that this code reads."""
        with self.database.readable_errors(), self._connection.begin():
            migrations.check(self._connection, self.database.name)

    def studies(self) -> pl.DataFrame:
        """Every study, oldest first; columns STUDIES."""
        return self._frame(f"SELECT {', '.join(STUDIES)} FROM studies ORDER BY id", STUDIES)

    def study(self, name: str) -> dict[str, Any]:
        """One row of `studies` as a dictionary; StudyError with the choices if there is no such study."""
        known = self._frame(f"SELECT {', '.join(STUDIES)} FROM studies WHERE name = {_quote(name)}", STUDIES)
        if known.is_empty():
            names = ", ".join(self.studies()["name"])
            raise StudyError(f"study {name!r} does not exist; {f'there are {names}' if names else 'there is none yet'}")
        return known.row(0, named=True)

    def counts(self, study: str) -> dict[State, int]:
        """How many trials of the study are in each state that occurs."""
        study_id = self.study(study)["id"]
        with self.database.readable_errors(), self._connection.begin():
            return rows.counts(self._connection, study_id)

    def best(self, study: str) -> tuple[float, int] | None:
        """The best objective of the study and its trial's number, the lowest of several; None before the first one."""
        row = self.study(study)
        with self.database.readable_errors(), self._connection.begin():
            return rows.best(self._connection, row["id"], row["direction"])

    def holder(self, study: str) -> str | None:
        """The process that runs the study now, by the lock it holds; None: none, whatever the study's state says."""
        study_id = self.study(study)["id"]
        with self.database.readable_errors(), self._connection.begin():
            return self.database.holder(self._connection, study_id, study)

    def trials(
        self,
        study: str,
        where: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        columns: Sequence[str] = tuple(TRIALS),
    ) -> pl.DataFrame:
        """Trials of a study, by number; columns TRIALS or a choice of them (`config` is most of a trial's size).

        `where` is an SQL condition and `sort` an SQL ORDER BY over the columns of trials, where `params.<dotted path>`
        stands for a sampled value, and the path alone for what a trial has there, drawn or not:
        `objective < 0.1 AND optimizer.learning_rate > 1e-3`, `steps DESC`. NULL sorts last. `top` keeps the first rows:
        without `sort`, those of the best objective.
        """
        return pl.concat(list(self.trial_batches(study, where, sort, top, columns)))

    def trial_batches(
        self,
        study: str,
        where: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        columns: Sequence[str] = tuple(TRIALS),
    ) -> Iterator[pl.DataFrame]:
        """What `trials` gives, BATCH_OF_TRIALS rows at a time; at least one frame."""
        row = self.study(study)
        if sort is None and top is not None:
            sort = "objective" if row["direction"] == "minimize" else "objective DESC"
        condition = f" AND ({self._expression(where, row['id'])}\n)" if where else ""
        order = f"{self._expression(sort, row['id'])}\n{_nulls_last(sort)}, " if sort else ""
        limit = f" LIMIT {int(top)}" if top is not None else ""
        # Told to order by number, SQLite reads a whole study in that order however few trials the condition leaves; but
        # told to order by id, which is the same, it would sort a whole study where there is none.
        last = "id" if where else "number"
        chosen = f"SELECT {', '.join(columns)} FROM trials WHERE study_id = {row['id']}"
        schema = {name: TRIALS[name] for name in columns}
        return self._batches(f"{chosen}{condition} ORDER BY {order}{last}{limit}", schema, BATCH_OF_TRIALS)

    def metrics(self, study: str, names: Sequence[str] | None = None) -> pl.DataFrame:
        """Metrics of a study, by number, step and name; columns METRICS. `names` None: all of them."""
        return pl.concat(list(self.metric_batches(study, names)))

    def metric_batches(self, study: str, names: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """What `metrics` gives, some BATCH rows at a time, each time all of some trials; at least one frame."""
        first = trial_id(self.study(study)["id"], 0)
        mine = f"trial_id >= {first} AND trial_id < {first + NUMBERS_PER_STUDY}"
        named = f" AND name IN ({', '.join(map(_quote, names))})" if names else ""
        columns = f"trial_id - {first} AS number, step, name, variant, condition, value"
        # Texts are sorted here: a server's order of them is that of its language.
        keys = ("number", "step", "name", "variant", "condition")
        rest = pl.DataFrame(schema=METRICS)
        sql = f"SELECT {columns} FROM metrics WHERE {mine}{named} ORDER BY trial_id"
        for batch in self._batches(sql, METRICS, BATCH):
            both = pl.concat([rest, batch])
            is_last = pl.col("number") == pl.col("number").last()
            rest = both.filter(is_last)
            if rest.height < both.height:
                yield both.filter(~is_last).sort(keys)
        yield rest.sort(keys)

    @contextmanager
    def moment(self) -> Generator[None]:
        """What is read inside is as of one moment, however long it takes and whatever is written meanwhile."""
        with self.database.readable_errors(), self._connection.begin():
            self.database.begin_moment(self._connection)
            yield

    def workers(self, study: str) -> pl.DataFrame:
        """The workers that trained for a study, in all its launches; columns WORKERS.

        `steps` are optimizer steps of a worker's lanes, `room` what they would have been with none free: the sums over
        workers are the study's lane utilisation.
        """
        mine = f"study_id = {self.study(study)['id']}"
        return self._frame(f"SELECT {', '.join(WORKERS)} FROM workers WHERE {mine} ORDER BY id", WORKERS)

    def sources(self, study: str) -> pl.DataFrame:
        """The files of a study's plug-ins from outside; columns SOURCES."""
        mine = f"study_id = {self.study(study)['id']}"
        return self._frame(f"SELECT {', '.join(SOURCES)} FROM sources WHERE {mine} ORDER BY bundle, module", SOURCES)

    def bundles(self, study: str, digests: Collection[str] = ()) -> tuple[Bundle, ...]:
        """A study's plug-ins from outside; in place of a bundle, an earlier version whose digest is among these.

        Raises StorageError for a file that is not what was stored.
        """
        return tuple(stored_sources.choose(self.stored_bundles(study), digests))

    def stored_bundles(self, study: str) -> list[StoredBundle]:
        """All versions of a study's plug-ins from outside; raises StorageError as `bundles` does."""
        return list(stored_sources.read(self.sources(study).iter_rows(named=True)))

    def fingerprints(self, study: str) -> pl.DataFrame:
        """What determined the numbers of a study's trials, by number; columns FINGERPRINTS."""
        mine = f"study_id = {self.study(study)['id']}"
        return self._frame(
            f"SELECT {', '.join(FINGERPRINTS)} FROM fingerprints WHERE {mine} ORDER BY number", FINGERPRINTS
        )

    def changes(self, study: str) -> pl.DataFrame:
        """What was changed in a study's space since its launch, in order; columns CHANGES."""
        mine = f"study_id = {self.study(study)['id']}"
        return self._frame(f"SELECT {', '.join(CHANGES)} FROM changes WHERE {mine} ORDER BY number", CHANGES)

    def lane_steps(self, study: str) -> tuple[int, int]:
        """Optimizer steps of the study's lanes, and what they would have been with no lane free; of all launches."""
        counts = self.workers(study)
        return int(counts["steps"].sum()), int(counts["room"].sum())

    def architectures(self, study: str) -> pl.DataFrame:
        """The non-linearities that a study's trials learned, by task, component and number; columns ARCHITECTURES.

        `knots` are values at evenly spaced points from `low` to `high`, both included; `objective` is the trial's.
        """
        columns = "architectures.id, number, architectures.task, component, low, high, knots, objective"
        mine = f"architectures.study_id = {self.study(study)['id']}"
        sql = f"SELECT {columns} FROM architectures JOIN trials ON trials.id = trial_id WHERE {mine}"
        frame = self._frame(sql, {**ARCHITECTURES, "knots": pl.String()})
        knots = pl.col("knots").str.json_decode(ARCHITECTURES["knots"])
        return frame.with_columns(knots).sort("task", "component", "number")

    def query(self, sql: str) -> pl.DataFrame:
        """The answer to one SELECT of the user's; StorageError with the database's words if it is refused.

        PostgreSQL gives the types. SQLite's come from the values; a column without any has the type of the trials' or
        metrics' column of that name, else text. StorageError also for an answer that is too large.
        """
        with self._select(sql) as answer:
            values = _columns(self._fetch(answer) if answer.names else [], len(answer.names))
        if len(set(answer.names)) < len(answer.names):
            raise StorageError(f"two columns of the answer have one name ({', '.join(answer.names)}); use AS")
        named = zip(answer.names, answer.types, values, strict=True)
        types = [known or _infer_type(name, column) for name, known, column in named]
        return _to_frame(dict(zip(answer.names, types, strict=True)), values)

    def _fetch(self, answer: Rows) -> list[tuple[Any, ...]]:
        """All rows of an answer, few at a time where they are large."""
        fetched: list[tuple[Any, ...]] = []
        taken, count = 0, 1
        while rows := answer.cursor.fetchmany(count):
            fetched += rows
            taken += sum(map(_size_of, itertools.chain.from_iterable(rows)))
            if taken > LARGEST_ANSWER:
                raise StorageError(
                    f"the answer has more than {LARGEST_ANSWER >> 20:,} MiB; add a LIMIT, or use `search export`"
                )
            count = max(1, min(_CHUNK, len(fetched) * (LARGEST_ANSWER >> 4) // taken))
        return fetched

    def _expression(self, sql: str, study_id: int) -> str:
        """The user's SQL with paths spelled out; texts in quotes stay as they are."""

        def spell(match: re.Match[str]) -> str:
            if match["knob"] is None:
                path = match["path"]
                return self.database.parameter(self._connection, study_id, path) if path else match[0]
            value = self.database.knob(self._connection, study_id, match["knob"])
            if value is None:
                unknown.append(match["knob"])
            return value or match[0]

        unknown: list[str] = []
        with self.database.readable_errors(), self._transaction():
            spelled = _PARAMETER.sub(spell, sql)
        if unknown:
            raise StudyError(no_such("value of the study's trials", unknown[0], self._known_paths(study_id)))
        return spelled

    def _known_paths(self, study_id: int) -> list[str]:
        """What was drawn for the study's first trial, and what follows from that."""
        found = self._frame(
            f"SELECT params FROM trials WHERE study_id = {study_id} ORDER BY number LIMIT 1", {"params": pl.String()}
        )
        return sorted(json.loads(found.item())) if found.height else []

    @contextmanager
    def _select(self, sql: str) -> Generator[Rows]:
        with self.database.readable_errors(), self._transaction():
            answer = self.database.select(self._connection, sql)
            with closing(answer.cursor):
                yield answer

    def _transaction(self) -> AbstractContextManager[object]:
        """One of its own, or the one of a `moment`."""
        return nullcontext() if self._connection.in_transaction() else self._connection.begin()

    def _frame(self, sql: str, schema: Schema) -> pl.DataFrame:
        return pl.concat(list(self._batches(sql, schema, BATCH)))

    def _batches(self, sql: str, schema: Schema, rows: int) -> Iterator[pl.DataFrame]:
        with self._select(sql) as answer:
            yield pl.DataFrame(schema=schema)
            while chunk := answer.cursor.fetchmany(rows):
                yield _to_frame(schema, _columns(chunk, len(schema)))


_SECTIONS = "task|model|optimizer|averaging|learning|training|transfer|architecture"
_PARAMETER = re.compile(
    r"'(?:[^']|'')*'|\bparams\.(?P<path>[A-Za-z_]\w*(?:\.\w+)*)"
    rf"|\b(?P<knob>(?:{_SECTIONS})(?:\.[A-Za-z_]\w*)+)"
)


def _size_of(value: Any) -> int:
    return _VALUE + (len(value) if isinstance(value, str | bytes) else 0)


def _quote(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _nulls_last(sort: str) -> str:
    return "" if "nulls" in sort.lower() else "NULLS LAST"


def _columns(answer: Sequence[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    return list(zip(*answer, strict=True)) if answer else [()] * width


def _to_frame(schema: Schema, columns: Sequence[Sequence[Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [_series(name, dtype, values) for (name, dtype), values in zip(schema.items(), columns, strict=True)]
    )


def _series(name: str, dtype: pl.DataType, values: Sequence[Any]) -> pl.Series:
    """A column; SQLite's times come as text and its truth values as 0 and 1, PostgreSQL's exact numbers as Decimal."""
    kinds = set(map(type, values)) - {type(None)}
    if dtype == _TIME and kinds == {str}:
        return pl.Series(name, values, pl.String()).str.to_datetime(
            "%Y-%m-%d %H:%M:%S%.6f", time_unit="us", time_zone="UTC"
        )
    if dtype == pl.Boolean() and kinds == {int}:
        return pl.Series(name, values, pl.Int64()).cast(dtype)
    if dtype == pl.Float64() and kinds - {float}:
        values = [None if value is None else float(value) for value in values]
    if dtype == pl.String() and kinds - {str}:
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, dtype)


def _infer_type(name: str, values: Sequence[Any]) -> pl.DataType:
    """The type that all values of a column fit."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return {**TRIALS, **METRICS}.get(name, pl.String())
    if kinds == {int}:
        return pl.Int64()
    if kinds <= {int, float}:
        return pl.Float64()
    return pl.Binary() if kinds == {bytes} else pl.String()
