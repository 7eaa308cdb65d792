"""PostgreSQL through psycopg 3: for studies whose workers are on many machines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import final

from sqlalchemy import URL, Connection, Table, create_engine, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool

from spaces.errors import StorageError
from spaces.plugins import canonical_json
from storage.databases.database import Database, Insert, MetricRow
from storage.databases.postgres_locks import AdvisoryLocks, StopColumn, session_name
from storage.databases.postgres_reading import PostgresReading, driver_of

_SETTINGS = {
    "timezone": "UTC",
    "cursor_tuple_fraction": "1",
    # Both ends notice within 40 seconds that the other one, or the network, is gone.
    "tcp_keepalives_idle": "10",
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
"""SQL states: connection lost, server down, starting or full, serialization failure, deadlock."""
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
SECRETS = ("password", "sslpassword")
"""Parts of a URL's query that must never be shown."""
_WORDS = {"QueryCanceled": "it was interrupted, or took longer than it may; ask for less, or give it more --seconds"}
_INSERT_METRICS = """
INSERT INTO metrics (trial_id, step, name, variant, condition, value)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::double precision[])
ON CONFLICT DO NOTHING
"""


@final
class Postgres(Database):
    """A server."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql+psycopg")
        self.name = url._replace(drivername="postgresql", query={}).render_as_string(hide_password=True)
        self._locks = self.locks = AdvisoryLocks(self.name)
        self.stops = StopColumn(lambda: self._connect(read_only=False))
        self.mailbox = None

    def writer(self) -> Connection:
        connection = self._connect(read_only=False)
        try:
            with self.readable_errors(), connection.begin():
                off = [name for name in _DURABLE if connection.scalar(text(f"SHOW {name}")) == "off"]
            if off:
                problem = f"{', '.join(off)} is off, so a commit may be lost; switch it on"
                raise StorageError(f"{self.name}: {problem}")
        except StorageError:
            connection.close()
            raise
        self._locks.add(connection)
        return connection

    def check_place(self, connection: Connection) -> None:
        """Do nothing: a server knows its own files."""

    def reader(self, seconds: float | None = None) -> PostgresReading:
        from psycopg.types.json import set_json_loads

        connection = self.snapshot()  # a transaction reads one moment, as in SQLite
        if seconds is not None:
            with self.readable_errors(), connection.begin():
                connection.execute(text(f"SET statement_timeout = {math.ceil(1000 * seconds)}"))
        set_json_loads(lambda data: bytes(data).decode() if not isinstance(data, str) else data, driver_of(connection))
        return PostgresReading(connection, self.name)

    def snapshot(self) -> Connection:
        from psycopg import IsolationLevel

        connection = self._connect(read_only=True)
        driver_of(connection).isolation_level = IsolationLevel.REPEATABLE_READ
        return connection

    def damage(self) -> list[str]:
        """Return no faults: the server checks references and pages by itself."""
        return []

    def insert(self, table: Table) -> Insert:
        return postgresql.insert(table)

    def insert_metrics(self, connection: Connection, rows: Sequence[MetricRow]) -> None:
        connection.exec_driver_sql(_INSERT_METRICS, tuple(map(list, zip(*rows, strict=True))))

    def ring(self, connection: Connection, topic: str) -> None:
        connection.execute(text("SELECT pg_notify(:topic, '')"), {"topic": topic})

    def explain(self, error: BaseException) -> str | None:
        import psycopg

        if not isinstance(error, psycopg.Error):
            return None
        line = " ".join(str(error).split("\n", 1)[0].split())
        for secret in filter(None, (self._url.password, *map(self._url.query.get, SECRETS))):
            line = line.replace(str(secret), "***")
        return _WORDS.get(type(error).__name__, line)

    def is_away(self, error: BaseException) -> bool:
        """Return True if the connection broke, or the server says to try again."""
        import psycopg

        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return lost and (error.sqlstate is None or bool(_AWAY.fullmatch(error.sqlstate)))

    def close(self) -> None:
        """Do nothing: the advisory lock ends with the connection."""

    def _connect(self, *, read_only: bool) -> Connection:
        if not find_spec("psycopg"):
            raise StorageError(f"{self.name} needs psycopg: pip install 'graft-search[postgres]'")
        engine = create_engine(
            self._url,
            poolclass=NullPool,
            json_serializer=canonical_json,
            connect_args={**_CONNECTING, **self._url.query, "application_name": session_name()},
        )
        with self.readable_errors():
            connection = engine.connect()
            driver_of(connection).read_only = read_only
            return connection
