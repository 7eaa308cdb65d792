"""A database that is written without its checks."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.support.databases import raw


def unchecked(url: str, *statements: str) -> None:
    """Run SQL with every constraint off, as a damaged or hand-edited database would have it."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.execute(statement)
        return
    constraints = "SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype IN ('c', 'f')"
    for table, name in raw(url, f"{constraints} AND connamespace = 'public'::regnamespace"):
        raw(url, f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
    for statement in statements:
        raw(url, statement)
