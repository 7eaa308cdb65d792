"""The language of spaces, and the plain values that the rest of the program exchanges.

    space = spaces.load("set_complement", families)     a file, or the name of a packaged space
    trial = space.sample(0, lambda draw: 0.5)

The names below are loaded when they are first used, because reading spaces needs PyYAML, and a machine that only trains
imports `spaces.fields` and `spaces.records` without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spaces.catalogue import packaged
    from spaces.declarations import Row
    from spaces.errors import GraftError, PluginError, SpaceError
    from spaces.parts import Families
    from spaces.reading import load, parse
    from spaces.records import Trial
    from spaces.space import Space
    from spaces.terms import Draw

__all__ = [
    "Draw",
    "Families",
    "GraftError",
    "PluginError",
    "Row",
    "Space",
    "SpaceError",
    "Trial",
    "load",
    "packaged",
    "parse",
]

_HOME = {
    "Draw": "terms",
    "Families": "parts",
    "GraftError": "errors",
    "PluginError": "errors",
    "Row": "declarations",
    "Space": "space",
    "SpaceError": "errors",
    "Trial": "records",
    "load": "reading",
    "packaged": "catalogue",
    "parse": "reading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spaces' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spaces.{_HOME[name]}"), name)
