"""Tells whether a database may know a task, without libraries that take a second to import."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

_SQLITE = "sqlite:///"


def may_know_task(url: str, task: str) -> bool:
    """Return False where a SQLite database does not exist, or has no study whose space has the task's name in it.

    True for any other database, and for a file that cannot be asked in this way: reading it will tell.
    """
    if not url.startswith(_SQLITE):
        return True
    file = url.removeprefix(_SQLITE).partition("?")[0]
    try:
        with open(file, "rb"):
            pass
        with closing(sqlite3.connect(f"file:{quote(file)}?mode=ro", uri=True, timeout=1)) as connection:
            found = connection.execute("SELECT 1 FROM studies WHERE instr(space, ?) LIMIT 1", (task,)).fetchone()
    except FileNotFoundError:
        return False
    except (OSError, sqlite3.Error):
        return True
    return found is not None
