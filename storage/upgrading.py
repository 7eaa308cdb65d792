"""The migrations that a database needs."""

from __future__ import annotations

from collections.abc import Sequence

from storage import migrations
from storage.databases import find_database
from storage.store import open_store


def pending_migrations(url: str) -> tuple[str, Sequence[str]]:
    """Return a database's version and migrations from it, a line each; StorageError if newer."""
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        if not migrations.is_older(connection):
            migrations.check(connection, database.name)
        schema = str(migrations.version_of(connection))
    return schema, migrations.steps_from(schema)


def migrate_if_older(url: str) -> None:
    """Migrate a database if its schema is older; StudyError if it is being written meanwhile."""
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        older = migrations.is_older(connection)
    if older:
        open_store(url).close()
