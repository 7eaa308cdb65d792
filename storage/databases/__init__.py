"""The database that a URL names, one of two kinds."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from spaces.errors import StorageError
from storage.databases.database import Database
from storage.databases.postgres import SECRETS, Postgres
from storage.databases.sqlite import Sqlite

_SQLITE = "sqlite:///"
_FORMS = "use sqlite:///FILE or postgresql://USER@HOST/DATABASE"
_NO_URL = f"the storage is not a URL; {_FORMS}"  # not shown: it may hold a password


def find_database(url: str) -> Database:
    """Return the database that a URL names; raises StorageError that gives the two forms.

    sqlite:///relative.db, sqlite:////absolute.db, postgresql://user:password@host:port/database. What
    follows sqlite:/// is the file's path as it stands, `?`, `%` and `@` included.
    """
    parsed = _parse(url)
    kind = parsed.get_backend_name()
    if parsed.host if kind == "sqlite" else "@" in f"{parsed.host}{parsed.database}":
        raise StorageError(f"{_NO_URL}; in a password write %40 for @, %2F for / and %3A for :")
    if kind == "sqlite":
        file = parsed.database or ""
        before = file.partition("?")[0]
        if before != file and Path(before).is_file() and not Path(file).exists():
            raise StorageError(f"there is no {file}, but {before}: what follows sqlite:/// is a file's path, no query")
        return Sqlite(file)
    if kind == "postgresql":
        return Postgres(parsed)
    raise StorageError(f"storage {kind}://... is not supported; {_FORMS}")


def has_password(url: str) -> bool:
    """Return True if a URL holds a password; raises StorageError if it is no URL."""
    parsed = _parse(url)
    return bool(parsed.password or any(name in parsed.query for name in SECRETS))


def file_of(url: str) -> str | None:
    """Return a SQLite database's file, whatever link the URL names; None for any other text."""
    parsed = _parse(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return str(Path(parsed.database or "").resolve()) if is_file else None


def _parse(url: str) -> URL:
    if url.startswith(_SQLITE):
        return URL.create("sqlite", database=url.removeprefix(_SQLITE))
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise StorageError(_NO_URL) from None
