"""Reading a PostgreSQL database: one SELECT at a time, through a server's cursor."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, final

import polars as pl
from sqlalchemy import Connection, text

from spaces.errors import StorageError
from storage.databases.database import ReadingConnection, Rows

if TYPE_CHECKING:
    import psycopg

_READ_ALL_DATA = 140_000
"""The version of PostgreSQL that brought the role pg_read_all_data."""
_ACTING = re.compile(
    r"""set_config|pg_(terminate|cancel)_backend|pg_(try_)?advisory|pg_notify|pg_logical|\blo_\w+|dblink"""
    # Functions that could spell or run the others unseen:
    r"""|\w+_to_xml|ts_stat|ts_rewrite|\bU&["']""",
    re.IGNORECASE,
)
"""Functions with effects even in a read-only transaction of a role that may only read."""
_TYPES: dict[int, pl.DataType] = {
    16: pl.Boolean(),
    17: pl.Binary(),
    20: pl.Int64(),
    21: pl.Int64(),
    23: pl.Int64(),
    700: pl.Float64(),
    701: pl.Float64(),
    1700: pl.Float64(),
    1082: pl.Date(),
    1114: pl.Datetime("us"),
    1184: pl.Datetime("us", "UTC"),
}
"""Type numbers of PostgreSQL's catalogue; every other type is shown as text."""
_CASTS = {"number": "::double precision", "boolean": "::boolean"}


@final
class PostgresReading(ReadingConnection):
    """A connection in read-only transactions, each of which sees one moment of the database."""

    def __init__(self, connection: Connection, name: str) -> None:
        """`name` is the database's in errors."""
        super().__init__(connection)
        self._name = name
        self._driver = driver_of(connection)

    def close(self) -> None:
        # SQLAlchemy would roll back first, and print a traceback as that fails.
        if self._driver.broken:
            self.connection.invalidate()
        super().close()

    def select(self, sql: str) -> Rows:
        """Run one SELECT through a server's cursor, row by row; refuse any change to a table."""
        acting = _ACTING.search(sql)
        if acting:
            raise StorageError(f"{self._name}: {acting[0]!r} is not allowed here; only SELECT is")
        driver = self._driver
        is_superuser = driver.pgconn.parameter_status(b"is_superuser") == b"on"
        if is_superuser and driver.info.server_version >= _READ_ALL_DATA:
            # A superuser's SELECT can write files.
            self.connection.execute(text("SET LOCAL ROLE pg_read_all_data"))
        cursor = driver.cursor("graft", binary=True)
        try:
            cursor.execute(sql.encode())
        except BaseException:
            cursor.close()
            raise
        columns = cursor.description or ()
        types = [_TYPES.get(column.type_code, pl.String()) for column in columns]
        return Rows([column.name for column in columns], types, cursor)

    def moment(self) -> AbstractContextManager[None]:
        """Do nothing: each transaction reads as of one moment."""
        return nullcontext()

    def listen(self, topic: str) -> int:
        with self.connection.begin():
            self.connection.exec_driver_sql(f"LISTEN {topic}")
        return self._driver.fileno()

    def hush(self) -> None:
        for _ in self._driver.notifies(timeout=0):
            pass

    def parameter(self, study_id: int, path: str) -> str:
        kinds = self._kinds(study_id, f"params -> '{path}'")
        return f"(params ->> '{path}'){_cast(kinds)}"

    def knob(self, study_id: int, path: str) -> str | None:
        steps = path.replace(".", ",")
        value = f"coalesce(params -> '{path}', config #> '{{{steps},name}}', config #> '{{{steps}}}')"
        kinds = self._kinds(study_id, value)
        return f"({value} #>> '{{}}'){_cast(kinds)}" if kinds else None

    def _kinds(self, study_id: int, value: str) -> set[str]:
        """Return the JSON types that a value has in the study's trials."""
        kinds = f"SELECT DISTINCT json_typeof({value}) FROM trials WHERE study_id = {study_id}"
        return {kind for (kind,) in self.connection.exec_driver_sql(kinds)} - {None, "null"}


def _cast(kinds: set[str]) -> str:
    """Return the SQL that makes a JSON text a number or a truth value if all values are."""
    return _CASTS.get(next(iter(kinds)), "") if len(kinds) == 1 else ""


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """Return the connection of psycopg under SQLAlchemy's."""
    import psycopg

    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver
