"""The plug-ins from outside that a process, or one of its threads, looks names up among."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from spaces.plugins.bundles import Outside
from spaces.plugins.importing import register

_installed = Outside()
_used = ContextVar[Outside | None]("plug-ins from outside", default=None)


def current() -> Outside:
    """Return the plug-ins from outside that names are looked up among here and now."""
    used = _used.get()
    return _installed if used is None else used


def install(outside: Outside) -> None:
    """Look names up among these from now on, in all threads, as a worker's process does first."""
    global _installed
    for bundle in outside.bundles:
        register(bundle)
    _installed = outside


@contextmanager
def using(outside: Outside) -> Generator[Outside]:
    """Look names up among these inside the block: a service's studies may share plug-ins' names."""
    for bundle in outside.bundles:
        register(bundle)
    token = _used.set(outside)
    try:
        yield outside
    finally:
        _used.reset(token)
