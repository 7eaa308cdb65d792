"""Tokens by which clients reach the service over HTTP, with their roles; only digests are kept."""

from __future__ import annotations

import re
from collections.abc import Container
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from sqlalchemy import Connection, insert, select, update

from spaces.errors import StudyError
from spaces.messages import no_such, shorten
from storage.clock import Now
from storage.schema import tokens

Role = Literal["read", "submit", "admin"]
"""Each may do what those before it may: look; submit, and pause or cancel its own; change all."""
ROLES: tuple[Role, ...] = get_args(Role)
LONGEST_SECONDS = 10 * 366 * 86400
"""The longest life of a token that expires: ten years."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,59}")


class Token(NamedTuple):
    """A token as it is listed."""

    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None = None
    """None if it never expires."""


_COLUMNS = tuple(tokens.c[name] for name in Token._fields)
_IS_VALID = tokens.c.revoked_at.is_(None) & (tokens.c.expires_at.is_(None) | (tokens.c.expires_at > Now()))


def add(connection: Connection, name: str, role: str, digest: str, seconds: float | None = None) -> None:
    """Write a new token, which expires in so many seconds by the database's clock (None: never).

    Repeated, it changes nothing. StudyError for a bad role, time or name, or a taken name.
    """
    if not _NAME.fullmatch(name):
        rule = "must be a word of letters, digits, '.', '_', '@' and '-'"
        raise StudyError(f"{shorten(repr(name))} {rule}")
    if role not in ROLES:
        raise StudyError(no_such("role", role, ROLES))
    if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
        rule = f"it must be above 0 and at most {LONGEST_SECONDS:,}"
        raise StudyError(f"a token may expire in {seconds:g} s; {rule}")
    known = connection.execute(select(tokens.c.digest).where(tokens.c.name == name)).scalar()
    if known == digest:  # the request is made again, as it was committed and its answer lost
        return
    if known is not None:
        raise StudyError(f"token {name!r} exists already, or did; choose another name")
    values = {"name": name, "role": role, "digest": digest, "created_at": Now()}
    connection.execute(insert(tokens).values(expires_at=None if seconds is None else Now(seconds), **values))


def revoke(connection: Connection, name: str) -> None:
    """Revoke a token unless it was revoked before; StudyError with the choices if there is none."""
    c = tokens.c
    this = update(tokens).where(c.name == name, c.revoked_at.is_(None))
    connection.execute(this.values(revoked_at=Now()))
    if connection.execute(select(c.id).where(c.name == name)).first() is None:
        known = connection.scalars(select(c.name).where(c.revoked_at.is_(None)).order_by(c.name))
        raise StudyError(no_such("token", name, known))


def read(connection: Connection) -> list[Token]:
    """Return all tokens, the oldest first, revoked ones included."""
    return [Token(*row) for row in connection.execute(select(*_COLUMNS).order_by(tokens.c.id))]


def find(connection: Connection, digest: str, revoked: Container[str] = ()) -> Token | None:
    """Return a digest's token unless it expired or was revoked, here or by a request."""
    row = connection.execute(select(*_COLUMNS).where(tokens.c.digest == digest, _IS_VALID)).first()
    return Token(*row) if row and row.name not in revoked else None


def find_role(connection: Connection, name: str) -> Role | None:
    """Return the role of the token of a name; None if it is not valid now.

    The token's row is locked, so that the transactions of one person follow one another: each then
    counts the studies that those before it have queued.
    """
    this = select(tokens.c.role).where(tokens.c.name == name, _IS_VALID).with_for_update()
    return connection.execute(this).scalar()
