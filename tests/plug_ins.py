"""The plug-ins of a family as its contract test meets them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spaces import plugins


def example(family: type, name: str) -> dict[str, Any]:
    """The first of a plug-in's own examples."""
    return next(found for found in plugins.examples(family) if found["name"] == name)


def shipped(family: type) -> set[str]:
    """The members in the family's own folder; what else a test adds is in folders of its own."""
    folder = Path(str(sys.modules[family.__module__].__file__)).parent
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
