"""Mutations: errors made on purpose, one at a time, that the tests must notice.

The list is made by hand, in the TOML files of this folder. mutmut and cosmic-ray were considered: they change operators
and constants one by one, thousands in these files and many without effect, but can neither reorder a write and a
decision, nor drop a clause of SQL in several lines, nor say which tests should notice.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
_FILES = (
    "storage.toml",
    "steering.toml",
    "checkpoints.toml",
    "service.toml",
    "interchange.toml",
    "web.toml",
    "edge.toml",
    "fusion.toml",
)


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of one file."""

    file: str
    """Relative to the root of the repository."""
    old: str
    """Occurs in the file once."""
    new: str
    breaks: str
    """What is wrong then, in a line."""
    tests: Sequence[str]
    """Relative to `tests`, as pytest takes them; the quickest that should fail."""
    postgresql: bool = False
    """Whether the tests run on PostgreSQL as well, which takes seconds to start, rather than on SQLite alone."""
    survives: str | None = None
    """Why no test can notice it."""

    def apply(self, text: str) -> str:
        """Return the changed text of the file; ValueError unless the old text occurs in it once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} must occur once, but occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)

    @classmethod
    def read_all(cls) -> list[Self]:
        """Return the list, in its order."""
        folder = Path(__file__).parent
        return [cls(**row) for file in _FILES for row in tomllib.loads((folder / file).read_text())["mutation"]]
