"""Tokens, and what their roles may do.

A token is 256 random bits. Its SHA-256 is enough to know it again, without salt or a slow hash:
these make guessed passwords expensive and hide equal ones, and 256 bits are neither guessed nor
equal.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from storage import StoreRequest, open_reader, request_service
from storage.tokens import ROLES, Role, Token

COOKIE = "graft_token"
"""The cookie in which a browser sends the token that was typed into the page."""
_PREFIX = "graft_"
"""The start of each token, by which one that was published by mistake is found."""
_BYTES = 32


@dataclass(frozen=True)
class Holder:
    """The person or program on whose behalf a request is made."""

    name: str
    """The token's name; `local` for a request that needs no token."""
    role: Role
    digest: str = ""
    """SHA-256 of the token, to look it up again; empty for a request that needs no token."""

    @property
    def requester(self) -> str | None:
        """The person for whom the queue does what is asked; None for one who may change all."""
        return None if self.may("admin") else self.name

    def may(self, role: Role) -> bool:
        """Return True if the holder may do what asks for this role."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Holder("local", "admin")
"""All who reach a server that listens on loopback and asks for no token."""


def make_token(url: str, name: str, role: str, seconds: float | None = None) -> str:
    """Write a new token into the database and return it, for the only time.

    It expires in so many seconds, or never. A service that runs writes it. Raises StudyError as
    `tokens.add` and `request_service` do.
    """
    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    row = {"role": role, "digest": _digest(token), "seconds": seconds}
    request_service(url, StoreRequest(action="make_token", study=name, row=row))
    return token


def read_tokens(url: str) -> list[Token]:
    """Return the tokens of a database, the oldest first, those that were revoked too."""
    with open_reader(url) as reader:
        return reader.tokens()


def find_holder(url: str, token: str) -> Holder | None:
    """Return the holder of a token; None for one that is unknown, revoked or expired."""
    digest = _digest(token)
    with open_reader(url) as reader:
        record = reader.find_token(digest)
    return Holder(record.name, record.role, digest) if record else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
