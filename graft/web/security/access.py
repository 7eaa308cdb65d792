"""Who may do what: tokens and their roles.

A token is 256 random bits. Its SHA-256 is enough to know it again, without salt or a slow hash: these make guessed
passwords expensive, and nobody guesses 256 bits; equal tokens, which a salt would hide, do not happen.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from storage import open_reader, open_store
from storage.tokens import ROLES, Role, Token

COOKIE = "graft_token"
"""By which a browser sends the token that was typed into the page."""
_PREFIX = "graft_"
"""By which a token that was published by mistake is found."""
_BYTES = 32


@dataclass(frozen=True)
class Holder:
    """On whose behalf a request is made."""

    name: str
    """The token's name; of a request that needs no token `local`."""
    role: Role

    def may(self, role: Role) -> bool:
        """Whether what asks for this role is allowed."""
        return ROLES.index(self.role) >= ROLES.index(role)


LOCAL = Holder("local", "admin")
"""All who reach a server that listens on loopback and asks for no token."""


def make_token(url: str, name: str, role: str) -> str:
    """Write a new token into the database and give it, for the only time; raises StudyError as `tokens.add` does."""
    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    with open_store(url) as store:
        store.add_token(name, role, _digest(token))
    return token


def revoke_token(url: str, name: str) -> None:
    """Have a token open nothing from now on; raises StudyError if there is none of this name."""
    with open_store(url) as store:
        store.revoke_token(name)


def read_tokens(url: str) -> list[Token]:
    """The tokens of a database, the oldest first, those that were revoked too."""
    with open_reader(url) as reader:
        return reader.tokens()


def find_holder(url: str, token: str) -> Holder | None:
    """Whose token it is; None: nobody's, or it was revoked."""
    with open_reader(url) as reader:
        found = reader.find_token(_digest(token))
    return Holder(found.name, found.role) if found else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
