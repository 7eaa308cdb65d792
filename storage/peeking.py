"""The question if a database may know a task, without libraries that take a second to import."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

_SQLITE = "sqlite:///"


def may_know_task(url: str, task: str) -> bool:
    """Return False if a SQLite database surely has no study whose space has the task's name."""
    if not url.startswith(_SQLITE):
        return True
    file = url.removeprefix(_SQLITE)
    try:
        with open(file, "rb"):
            pass
        address = f"file:{quote(file)}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=1)) as connection:
            sql = "SELECT 1 FROM studies WHERE instr(space, ?) LIMIT 1"
            row = connection.execute(sql, (task,)).fetchone()
    except FileNotFoundError:
        return False
    except (OSError, sqlite3.Error):
        return True
    return row is not None
