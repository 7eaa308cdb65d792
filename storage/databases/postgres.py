"""PostgreSQL through psycopg 3: for studies whose workers are on many machines."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import polars as pl
from sqlalchemy import URL, Connection, Table, create_engine, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool

from spaces.errors import StorageError, StudyError
from spaces.plugins import canonical_json
from storage.databases.database import Database, Insert, MetricRow, Rows, who_am_i
from storage.schema import studies

if TYPE_CHECKING:
    import psycopg

_LOCK_CLASS = 0x67726166
"""First half of the advisory lock's key, `graf`; the second half is the study's id."""
_SETTINGS = {
    "timezone": "UTC",
    "cursor_tuple_fraction": "1",
    "tcp_keepalives_idle": "10",  # both ends notice within 40 seconds that the other one, or the network, is gone
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
_CONNECTING = {
    "options": " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items()),
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
_AWAY = re.compile(r"08...|57P..|53300|40001|40P01")
"""SQL states: connection lost, shutting down or starting up, too many connections, serialization failure, deadlock."""
_RELEASE_SECONDS = 5.0
"""Seconds that the server gets to end a session of ours that it does not know to be dead."""
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
SECRETS = ("password", "sslpassword")
"""What of a URL's query must never be shown."""
_READ_ALL_DATA = 140_000
"""The version of PostgreSQL that brought the role pg_read_all_data."""
_ACTING = re.compile(
    r"""set_config|pg_(terminate|cancel)_backend|pg_(try_)?advisory|pg_notify|pg_logical|\blo_\w+|dblink"""
    r"""|\w+_to_xml|ts_stat|ts_rewrite|\bU&["']""",  # the last line: what could spell or run the others unseen
    re.IGNORECASE,
)
"""What acts although the transaction is read-only and the role may only read."""
_WORDS = {"QueryCanceled": "it was interrupted, or took longer than it may; ask for less, or give it more --seconds"}
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


class Postgres(Database):
    """A server."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = url._replace(drivername="postgresql", query={}).render_as_string(hide_password=True)
        self._sessions: set[int] = set()
        """Server processes of the writing connections that were lost; one may still hold our locks."""

    def writer(self) -> Connection:
        connection = self._connect(read_only=False)
        try:
            self._check_durability(connection)
        except StorageError:
            connection.close()
            raise
        self._sessions.add(_driver(connection).info.backend_pid)
        return connection

    def check_place(self, connection: Connection) -> None:
        """Nothing to do: a server knows its files."""

    def reader(self, seconds: float | None = None) -> Connection:
        from psycopg import IsolationLevel
        from psycopg.types.json import set_json_loads

        connection = self._connect(read_only=True)
        # What is read in one transaction is as of one moment, as it is in SQLite.
        _driver(connection).isolation_level = IsolationLevel.REPEATABLE_READ
        if seconds is not None:
            with self.readable_errors(), connection.begin():
                connection.execute(text(f"SET statement_timeout = {math.ceil(1000 * seconds)}"))
        set_json_loads(lambda data: bytes(data).decode() if not isinstance(data, str) else data, _driver(connection))
        return connection

    def snapshot(self) -> Connection:
        from psycopg import IsolationLevel

        connection = self._connect(read_only=True)
        _driver(connection).isolation_level = IsolationLevel.REPEATABLE_READ
        return connection

    def damage(self) -> list[str]:
        """Nothing: the server checks references and pages by itself."""
        return []

    def check_idle(self, connection: Connection) -> None:
        holder = connection.execute(text(_ANY_HOLDER), {"class": _LOCK_CLASS}).first()
        if holder:
            raise StudyError(f"{self.name}: study {holder[0]!r} is being run by {holder[1]}; stop it first")

    def insert(self, table: Table) -> Insert:
        return postgresql.insert(table)

    def insert_metrics(self, connection: Connection, rows: Sequence[MetricRow]) -> None:
        connection.exec_driver_sql(_INSERT_METRICS, tuple(map(list, zip(*rows, strict=True))))

    def lock_study(self, connection: Connection, study_id: int, study: str) -> None:
        """A session's advisory lock: the server lets go of it when the connection ends, however it ends."""
        key = {"class": _LOCK_CLASS, "study": study_id}
        give_up = time.monotonic() + _RELEASE_SECONDS
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:class, :study)"), key):
            holder = connection.execute(text(_HOLDER), key).first()
            ours = holder and holder.pid in self._sessions and holder.name.startswith(who_am_i())
            if holder and (not ours or time.monotonic() > give_up):
                raise StudyError(f"study {study!r} is being run by {holder.name}; stop it first")
            if holder:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": holder.pid})
                time.sleep(_RELEASE_SECONDS / 100)

    def holder(self, connection: Connection, study_id: int, study: str) -> str | None:
        found = connection.execute(text(_HOLDER), {"class": _LOCK_CLASS, "study": study_id}).first()
        return found.name if found else None

    def request_stop(self, study_id: int) -> None:
        with self.readable_errors(), self._connect(read_only=False) as connection, connection.begin():
            connection.execute(update(studies).where(studies.c.id == study_id).values(stop_requested=True))

    def stop_requested(self, connection: Connection, study_id: int) -> bool:
        return bool(connection.scalar(select(studies.c.stop_requested).where(studies.c.id == study_id)))

    def withdraw_stop(self, connection: Connection, study_id: int) -> None:
        connection.execute(update(studies).where(studies.c.id == study_id).values(stop_requested=False))

    def select(self, connection: Connection, sql: str) -> Rows:
        """A server's cursor takes one SELECT that changes no table, and nothing else, and gives it row by row."""
        acting = _ACTING.search(sql)
        if acting:
            raise StorageError(f"{self.name}: {acting[0]!r} is not allowed here; only SELECT is")
        driver = _driver(connection)
        if driver.pgconn.parameter_status(b"is_superuser") == b"on" and driver.info.server_version >= _READ_ALL_DATA:
            connection.execute(text("SET LOCAL ROLE pg_read_all_data"))  # a superuser's SELECT can write files
        cursor = driver.cursor("graft", binary=True)
        try:
            cursor.execute(sql.encode())
        except BaseException:
            cursor.close()
            raise
        columns = cursor.description or ()
        return Rows([c.name for c in columns], [_TYPES.get(c.type_code, pl.String()) for c in columns], cursor)

    def begin_moment(self, connection: Connection) -> None:
        """Nothing to do: each transaction of a reader is."""

    def parameter(self, connection: Connection, study_id: int, path: str) -> str:
        value = f"(params ->> '{path}')"
        kinds = f"SELECT DISTINCT json_typeof(params -> '{path}') FROM trials WHERE study_id = {study_id}"
        found = {kind for (kind,) in connection.exec_driver_sql(kinds)} - {None, "null"}
        return value + (_CASTS.get(found.pop(), "") if len(found) == 1 else "")

    def knob(self, connection: Connection, study_id: int, path: str) -> str | None:
        steps = path.replace(".", ",")
        value = f"coalesce(params -> '{path}', config #> '{{{steps},name}}', config #> '{{{steps}}}')"
        kinds = f"SELECT DISTINCT json_typeof({value}) FROM trials WHERE study_id = {study_id}"
        found = {kind for (kind,) in connection.exec_driver_sql(kinds)} - {None, "null"}
        cast = _CASTS.get(found.copy().pop(), "") if len(found) == 1 else ""
        return f"({value} #>> '{{}}'){cast}" if found else None

    def explain(self, error: BaseException) -> str | None:
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        line = " ".join(str(error).split("\n", 1)[0].split())
        for secret in filter(None, (self._url.password, *map(self._url.query.get, SECRETS))):
            line = line.replace(str(secret), "***")
        return _WORDS.get(type(error).__name__, line)

    def is_away(self, error: BaseException) -> bool:
        """Whether the connection broke, or the server says that another attempt may succeed."""
        import psycopg

        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return lost and (error.sqlstate is None or bool(_AWAY.fullmatch(error.sqlstate)))

    def close(self) -> None:
        """Nothing to do: the advisory lock goes with the connection."""

    def _connect(self, *, read_only: bool) -> Connection:
        if not find_spec("psycopg"):
            raise StorageError(f"{self.name} needs psycopg: pip install 'graft-search[postgres]'")
        engine = create_engine(
            self._url,
            poolclass=NullPool,
            json_serializer=canonical_json,
            connect_args={**_CONNECTING, "application_name": who_am_i(), **self._url.query},
        )
        with self.readable_errors():
            connection = engine.connect()
            _driver(connection).read_only = read_only
            return connection

    def _check_durability(self, connection: Connection) -> None:
        with self.readable_errors(), connection.begin():
            off = [name for name in _DURABLE if connection.scalar(text(f"SHOW {name}")) == "off"]
        if off:
            raise StorageError(f"{self.name}: {', '.join(off)} is off, so a commit may be lost; switch it on")


_INSERT_METRICS = """
INSERT INTO metrics (trial_id, step, name, variant, condition, value)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::double precision[])
ON CONFLICT DO NOTHING
"""
_HOLDER = """
SELECT pid,
    coalesce(nullif(application_name, ''), 'another process') || coalesce(' at ' || host(client_addr), '') AS name
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = :class AND objid = :study AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


_ANY_HOLDER = """
SELECT studies.name, application_name
FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN studies ON studies.id = objid
WHERE locktype = 'advisory' AND classid = :class AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
LIMIT 1
"""


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    import psycopg

    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver
