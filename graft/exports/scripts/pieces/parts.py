"""The parts of a trial, by the names in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.exports.scripts.pieces.trial import PARTS


def build(family: str, config: Mapping[str, Any]) -> Any:
    """Return the part that a configuration describes, {"name": ..., field: value}."""
    return PARTS[family][config["name"]](**{field: value for field, value in config.items() if field != "name"})
