"""Which plug-ins from outside a process looks names up among."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from spaces.plugins.bundles import Outside
from spaces.plugins.importing import register

_current = Outside()


def current() -> Outside:
    """The plug-ins from outside that names are looked up among now."""
    return _current


def install(outside: Outside) -> None:
    """Look names up among these from now on, in all threads: what a worker's process does before it begins."""
    global _current
    for bundle in outside.bundles:
        register(bundle)
    _current = outside


@contextmanager
def using(outside: Outside) -> Generator[Outside]:
    """Look names up among these inside the block. A process has one such set at a time, whatever the thread."""
    before = _current
    install(outside)
    try:
        yield outside
    finally:
        install(before)
