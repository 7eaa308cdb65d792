"""Schema versions: that of a database, and the way up to this code's."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from spaces.errors import StorageError
from storage.databases.database import Database
from storage.schema import VERSION, VERSION_TABLE, metadata

_LOCK = 7_215_902
"""Key of the lock that a PostgreSQL migration holds for its transaction."""


def upgrade(connection: Connection, database: Database) -> None:
    """Bring the database to VERSION; StorageError if it is newer, StudyError if a study runs."""
    if is_older(connection):
        database.locks.check_idle(connection)
    # Of two first launches at one instant, one makes the tables.
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    version = version_of(connection)
    _refuse_newer(version, database.name)
    if version is None:
        # The tables as the migrations would leave them, in a tenth of their time. Unchecked, so
        # that another program's table of one of these names is an error, as in a migration.
        metadata.create_all(connection, checkfirst=False)
        column = "version_num VARCHAR(32) NOT NULL PRIMARY KEY"
        connection.execute(text(f"CREATE TABLE {VERSION_TABLE} ({column})"))
        connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES ('{VERSION}')"))
    elif version != VERSION:
        from alembic import command  # a fifth of a second that an up-to-date database need not pay
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def check(connection: Connection, name: str) -> None:
    """Raise StorageError unless the database has exactly the version that this code reads."""
    version = version_of(connection)
    if version is None:
        raise StorageError(f"{name} is not a Graft database: it has no table {VERSION_TABLE}")
    _refuse_newer(version, name)
    if version != VERSION:
        versions = f"{name} has schema {version}, this program reads {VERSION}"
        raise StorageError(f"{versions}; run: search db upgrade")


def is_older(connection: Connection) -> bool:
    """Return True if the database's version is older; an empty or foreign database has none."""
    version = version_of(connection)
    return version is not None and version < VERSION


def version_of(connection: Connection) -> str | None:
    """Return the version that the database records, None for an empty or foreign database."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))


def steps_from(version: str) -> list[str]:
    """Return the steps from a version, a line each: `0015: Digests of the files ...`."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).parent)).walk_revisions(version, "head")
    newer = [script for script in scripts if script.revision > version]
    return [f"{script.revision}: {script.doc}" for script in reversed(newer)]


def _refuse_newer(version: str | None, name: str) -> None:
    if version is not None and version > VERSION:
        versions = f"{name} has schema {version}, newer than the {VERSION} of this program"
        raise StorageError(f"{versions}; update Graft")
