"""The answers of one reading connection, as Polars frames."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from typing import Any, final

import polars as pl
from sqlalchemy import Connection

from spaces.errors import StorageError
from storage.databases.database import Database, ReadingConnection, Rows
from storage.frames.columns import Schema, build_frame, infer_type, transpose

BATCH = 5_000
"""Rows that are read, and turned into columns, at once."""
_CHUNK = 100_000
"""The most rows fetched at once: Python's tuples take twenty times the room of a frame."""
LARGEST_ANSWER = 1 << 30
"""Bytes of a query's answer while it is fetched."""
_VALUE = 64
"""Bytes of a Python value beside its text."""


@final
class Answers:
    """Sends SELECTs over one connection."""

    def __init__(self, database: Database, reading: ReadingConnection) -> None:
        self.database = database
        self.reading = reading

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Open a transaction, or use a `moment`'s; errors of the driver become StorageErrors."""
        connection = self.reading.connection
        with self.database.readable_errors(), nullcontext() if connection.in_transaction() else connection.begin():
            yield connection

    @contextmanager
    def moment(self) -> Generator[None]:
        """Read everything inside the block as of one moment, whatever is written meanwhile."""
        connection = self.reading.connection
        with self.database.readable_errors(), connection.begin(), self.reading.moment():
            yield

    def read(self, sql: str, schema: Schema) -> pl.DataFrame:
        """Return the whole answer to a SELECT of these columns."""
        return pl.concat(list(self.batches(sql, schema, BATCH)))

    def batches(self, sql: str, schema: Schema, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the answer to a SELECT, so many rows at a time; at least one frame."""
        with ExitStack() as stack:
            answer = stack.enter_context(self._select(sql))
            try:
                yield pl.DataFrame(schema=schema)
                while chunk := answer.cursor.fetchmany(rows):
                    yield build_frame(schema, transpose(chunk, len(schema)))
            except GeneratorExit:  # no reader any more, and the connection may be closed by now
                with suppress(Exception):
                    stack.close()
                raise

    def infer(self, sql: str) -> pl.DataFrame:
        """Return the answer to one SELECT of the user's, as `Reader.query` does."""
        with self._select(sql) as answer:
            values = transpose(_fetch(answer) if answer.names else [], len(answer.names))
        if len(set(answer.names)) < len(answer.names):
            names = ", ".join(answer.names)
            raise StorageError(f"two columns of the answer have one name ({names}); use AS")
        columns = zip(answer.names, answer.types, values, strict=True)
        schema = {name: known or infer_type(name, column) for name, known, column in columns}
        return build_frame(schema, values)

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Yield the answer to a SELECT as the driver has it, so many rows at a time."""
        with self._select(sql) as answer:
            while chunk := answer.cursor.fetchmany(BATCH):
                yield from chunk

    @contextmanager
    def _select(self, sql: str) -> Generator[Rows]:
        with self.transaction():
            answer = self.reading.select(sql)
            with closing(answer.cursor):
                yield answer


def quote(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"


def _fetch(answer: Rows) -> list[tuple[Any, ...]]:
    """Return all rows of an answer, few at a time if they are large."""
    fetched: list[tuple[Any, ...]] = []
    taken, count = 0, 1
    while rows := answer.cursor.fetchmany(count):
        fetched += rows
        for value in itertools.chain.from_iterable(rows):
            taken += _VALUE + (len(value) if isinstance(value, str | bytes) else 0)
        if taken > LARGEST_ANSWER:
            most = f"more than {LARGEST_ANSWER >> 20:,} MiB"
            raise StorageError(f"the answer has {most}; add a LIMIT, or use `search export`")
        count = max(1, min(_CHUNK, len(fetched) * (LARGEST_ANSWER >> 4) // taken))
    return fetched
