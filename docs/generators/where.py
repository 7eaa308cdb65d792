"""The page that says where what is, from the docstrings of all public functions and classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from docs.generators.tables import prose, table

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("cli", "graft", "search", "spaces", "storage", "workers")
_TITLE = """# Where is what

Every function and class that another file may use, with the sentence that its docstring begins with, by folder. Search
this page for a word. [Architecture](../explanation/architecture.md) says what the folders are for.
"""


class _Place(NamedTuple):
    folder: str
    file: str
    name: str
    sentence: str


def page() -> str:
    """Return the page as Markdown."""
    lines = [_TITLE]
    for folder, places in groupby(_find_places(), key=lambda place: place.folder):
        rows = [[f"`{place.file}`", f"`{place.name}`", prose(place.sentence)] for place in places]
        lines += [f"## {folder}", "", *table(["file", "name", "what it is"], rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _find_places() -> Iterator[_Place]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py"), key=lambda path: (path.parent, path.name)):
            folder = path.parent.relative_to(_ROOT).as_posix()
            for node in ast.parse(path.read_text()).body:
                if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                    continue
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                yield _Place(folder, path.name, node.name, " ".join(first.split()))
