"""One file of results, to which runs add: a benchmark of all cases is made in parts, on a quiet machine at that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Results:
    """A file of JSON: kind (`steps`, `searches`) -> name of what was measured -> what was found."""

    path: Path

    def read(self, kind: str) -> dict[str, Any]:
        """Return what is there of a kind, by name."""
        return self._all().get(kind, {})

    def add(self, kind: str, name: str, figures: Mapping[str, Any]) -> None:
        """Add a result, or replace it; the file is whole at any moment."""
        everything = self._all()
        everything.setdefault(kind, {})[name] = dict(figures)
        aside = self.path.with_name(f"{self.path.name}.new")
        aside.write_text(json.dumps(everything, indent=1))
        os.replace(aside, self.path)

    def _all(self) -> dict[str, dict[str, Any]]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}
