"""Resources that a space may name beside words and numbers: files, data sets of a network, code.

On the machine itself a space may name any. One that comes over HTTP may name none, but in the
fields that the owner of the server allows. A text field may lead to a resource unless its
declaration says otherwise (`fields.text`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from spaces.errors import PluginError
from spaces.messages import shorten

_allowed: ContextVar[Collection[str] | None] = ContextVar("allowed", default=None)
"""Paths of the fields that may name resources; None: all may."""


class ResourceError(PluginError):
    """A space names a file, a data set or code, and may not."""


@contextmanager
def only(fields: Collection[str]) -> Generator[None]:
    """Allow resources only in fields of these paths (`task.corpus.path`) in a space read inside."""
    token = _allowed.set(frozenset(fields))
    try:
        yield
    finally:
        _allowed.reset(token)


def are_limited() -> bool:
    """Return True if only some fields may name resources now."""
    return _allowed.get() is not None


def check(path: str, value: str) -> None:
    """Raise ResourceError if the field at this path must not name a resource now."""
    allowed = _allowed.get()
    if allowed is None or path in allowed:
        return
    known = ", ".join(sorted(allowed)) or "none"
    raise ResourceError(
        f"{path}: {shorten(repr(value))} may lead to a file, a data set or code of the server, which a space over HTTP "
        f"must not name; fields that may here: {known}"
    )
