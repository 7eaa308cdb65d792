"""The language of spaces, and the plain values that the rest of the program exchanges.

    space = spaces.load("set_complement", families)     a file, or the name of a packaged space
    trial = space.sample(0, lambda draw: 0.5)

The names below are loaded when they are first used, because reading spaces needs PyYAML, and a
machine that only trains imports `spaces.plugins` and `spaces.records` without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spaces.errors import GraftError, PluginError, SpaceError
    from spaces.grammar.declarations import LeafDescription
    from spaces.grammar.formulas import Draw
    from spaces.grammar.sections import Families
    from spaces.reading import load, parse, parse_stored
    from spaces.reading.catalogue import packaged_spaces
    from spaces.records import Trial
    from spaces.space import Space

__all__ = [
    "Draw",
    "Families",
    "GraftError",
    "LeafDescription",
    "PluginError",
    "Space",
    "SpaceError",
    "Trial",
    "load",
    "packaged_spaces",
    "parse",
    "parse_stored",
]

_HOME = {
    "Draw": "grammar.formulas",
    "Families": "grammar.sections",
    "GraftError": "errors",
    "PluginError": "errors",
    "LeafDescription": "grammar.declarations",
    "Space": "space",
    "SpaceError": "errors",
    "Trial": "records",
    "load": "reading",
    "packaged_spaces": "reading.catalogue",
    "parse": "reading",
    "parse_stored": "reading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spaces' has no attribute {name!r}")
    return getattr(importlib.import_module(f"spaces.{_HOME[name]}"), name)
