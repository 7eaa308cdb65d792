"""Tokens by which clients reach the service over HTTP: for whom, in which role. A digest alone is kept of each."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from sqlalchemy import Connection, insert, select, update

from spaces.errors import StudyError
from spaces.messages import no_such, shorten
from storage.schema import Now, tokens

Role = Literal["read", "submit", "admin"]
"""Each may do what the ones before it may: look; submit, and pause or cancel what is its own; change all."""
ROLES: tuple[Role, ...] = get_args(Role)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,59}")


class Token(NamedTuple):
    """A token as it is listed."""

    name: str
    role: Role
    created_at: datetime
    revoked_at: datetime | None


def add(connection: Connection, name: str, role: str, digest: str) -> None:
    """Write a new token; raises StudyError for an unknown role, or a name that is taken or no word."""
    if not _NAME.fullmatch(name):
        raise StudyError(f"{shorten(repr(name))} must be a word of letters, digits, '.', '_', '@' and '-'")
    if role not in ROLES:
        raise StudyError(no_such("role", role, ROLES))
    if connection.execute(select(tokens.c.id).where(tokens.c.name == name)).first():
        raise StudyError(f"token {name!r} exists already, or did; choose another name")
    connection.execute(insert(tokens).values(name=name, role=role, digest=digest, created_at=Now()))


def revoke(connection: Connection, name: str) -> None:
    """Have a token open nothing from now on; raises StudyError with the choices if there is none of this name."""
    c = tokens.c
    these = update(tokens).where(c.name == name, c.revoked_at.is_(None)).values(revoked_at=Now())
    if not connection.execute(these).rowcount:
        known = connection.scalars(select(c.name).where(c.revoked_at.is_(None)).order_by(c.name))
        raise StudyError(no_such("token", name, known))


def read(connection: Connection) -> list[Token]:
    """All tokens, the oldest first, those that were revoked too."""
    c = tokens.c
    rows = connection.execute(select(c.name, c.role, c.created_at, c.revoked_at).order_by(c.id))
    return [Token(*row) for row in rows]


def find(connection: Connection, digest: str) -> Token | None:
    """The token of a digest, if it was not revoked."""
    c = tokens.c
    these = select(c.name, c.role, c.created_at, c.revoked_at).where(c.digest == digest, c.revoked_at.is_(None))
    row = connection.execute(these).first()
    return Token(*row) if row else None
