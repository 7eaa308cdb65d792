"""Reading a SQLite file: SELECTs and nothing else, with a limit in seconds."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

from sqlalchemy import Connection

from storage.databases.database import ReadingConnection, Rows

LARGEST_VALUE = 1 << 26
"""The most bytes of a value that a reader takes or makes; a configuration has thousands."""
_OPERATIONS = 100_000
"""SQLite's own operations, a few milliseconds of them, between looks at the clock and Ctrl-C."""
_ACTING = ("load_extension", "fts3_tokenizer")
_DOTTED_KEY = re.compile(r"""(->>?\s*)'([^'"$\[][^'"]*\.[^'"]*)'""")
"""`-> 'model.width'`: a key to PostgreSQL and newer SQLite, a path to SQLite 3.40."""
_INTROSPECTION = ("table_info", "table_list", "index_list", "index_info", "foreign_key_list")


@final
class SqliteReading(ReadingConnection):
    """A connection over which the authorizer lets SELECTs pass alone."""

    def __init__(self, connection: Connection, seconds: float | None) -> None:
        super().__init__(connection)
        self._driver = driver_of(connection)
        self._seconds = math.inf if seconds is None else seconds
        self._deadline = math.inf
        _guard(self._driver)
        self._driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE)
        self._driver.set_progress_handler(lambda: time.monotonic() > self._deadline, _OPERATIONS)

    def select(self, sql: str) -> Rows:
        self._deadline = time.monotonic() + self._seconds
        cursor = self._driver.execute(_DOTTED_KEY.sub(r"""\1'$."\2"'""", sql))
        names = [column[0] for column in cursor.description or ()]
        return Rows(names, [None] * len(names), cursor)

    @contextmanager
    def moment(self) -> Generator[None]:
        """Open a transaction for several SELECTs, as each is a transaction of its own otherwise."""
        _execute_unguarded(self._driver, "BEGIN")
        try:
            yield
        finally:
            _execute_unguarded(self._driver, "ROLLBACK")

    def listen(self, topic: str) -> None:
        """Do nothing: a file cannot announce that it has changed."""

    def hush(self) -> None:
        """Do nothing: there is nothing to stop listening to."""

    def parameter(self, study_id: int, path: str) -> str:
        return f"""json_extract(params, '$."{path}"')"""

    def knob(self, study_id: int, path: str) -> str | None:
        steps = "".join(f'."{step}"' for step in path.split("."))
        paths = (f'{steps}."name"', steps)
        in_config = (f"""json_extract(config, '${path}')""" for path in paths)
        value = f"coalesce({', '.join([self.parameter(study_id, path), *in_config])})"
        known = f"SELECT 1 FROM trials WHERE study_id = {study_id} AND {value} IS NOT NULL LIMIT 1"
        return value if self.connection.exec_driver_sql(known).first() else None


def driver_of(connection: Connection) -> sqlite3.Connection:
    """Return the connection of Python's own driver under SQLAlchemy's."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _authorize_reading(action: int, first: str | None, second: str | None, *more: Any) -> int:
    """Allow SELECTs only. ATTACH, VACUUM INTO and most PRAGMAs could touch other files."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    if action == sqlite3.SQLITE_FUNCTION and second in _ACTING:
        return sqlite3.SQLITE_DENY
    allowed = action in reading or (action == sqlite3.SQLITE_PRAGMA and first in _INTROSPECTION)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _guard(driver: sqlite3.Connection) -> None:
    driver.set_authorizer(_authorize_reading)


def _execute_unguarded(driver: sqlite3.Connection, statement: str) -> None:
    """Run a statement that the guard would refuse, since it allows SELECT alone."""
    driver.set_authorizer(None)
    driver.execute(statement)
    _guard(driver)
