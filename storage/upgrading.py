"""The migrations that a database needs."""

from __future__ import annotations

from collections.abc import Sequence

from storage import migrations
from storage.databases import find_database
from storage.store import open_store


def pending_migrations(url: str) -> tuple[str, Sequence[str]]:
    """Return a database's schema version and the migrations from it to this code's, a line each.

    Raises StorageError if there is no database, if it is not Graft's, or if its schema is newer.
    """
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        if not migrations.is_older(connection):
            migrations.check(connection, database.name)
        schema = str(migrations.version_of(connection))
    return schema, migrations.steps_from(schema)


def migrate_if_older(url: str) -> None:
    """Migrate a database with an older schema to this code's; any other database is only read.

    Raises StorageError if there is no database, StudyError if it is older and being written.
    """
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        older = migrations.is_older(connection)
    if older:
        open_store(url).close()
