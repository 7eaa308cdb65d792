"""The parts of a trial, by the names in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def list_classes() -> Mapping[str, type]:
    """Return the classes of all files, by name."""
    paths = (path.relative_to(FOLDER).with_suffix("") for path in sorted(FOLDER.rglob("[!_]*.py")))
    modules = [import_module(".".join((__package__ or "", *path.parts))) for path in paths]
    return {name: member for module in modules for name, member in vars(module).items() if isinstance(member, type)}


def class_name(family: str, name: str) -> str:
    """Return the name of a plug-in's class: `SetComplementTask`."""
    return "".join(word.capitalize() for word in (*name.split("_"), family))


def build(family: str, config: Mapping[str, Any]) -> Any:
    """Return the part that a configuration describes, {"name": ..., field: value}."""
    fields = {field: value for field, value in config.items() if field != "name"}
    return list_classes()[class_name(family, config["name"])](**fields)
