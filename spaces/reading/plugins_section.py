"""The section `plugins:` of a space: files, folders and modules of plug-ins from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from spaces.grammar.nodes import SETTING, Node, compose, read
from spaces.grammar.overrides import override
from spaces.messages import shorten
from spaces.reading import catalogue
from spaces.reading.transfer_section import inline_spaces, is_transfer

SECTION = "plugins"


class Entry(NamedTuple):
    """One entry of the section."""

    text: str
    """The entry, `./mine.py` or `mypackage.tasks`."""
    folder: Path
    """The folder of the space's file, which paths are relative to."""
    location: str
    """The start of an error about the entry."""


def read_entries(origin: str, overrides: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the plug-in entries of a space file and a transfer's tasks; imports none of them."""
    return read_entries_of(catalogue.read_text(origin), origin, overrides)


def read_entries_of(text: str, origin: str, overrides: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the entries of a space's text, otherwise as `read_entries`."""
    tree = compose(text, origin)
    root = read(override(tree, overrides) if overrides else tree)
    return list(_entries(inline_spaces(root) if is_transfer(root) else root))


def check_section(node: Node) -> None:
    """Raise SpaceError unless the section is a list of words."""
    list(_words(node))


def _entries(root: Node) -> Iterator[Entry]:
    content = root.content if isinstance(root.content, Mapping) else {}
    if SECTION in content:
        for node in _words(content[SECTION]):
            file = node.tree.start_mark.name
            folder = Path() if file.startswith(SETTING) else Path(file).parent
            yield Entry(node.word, folder.absolute(), f"{node.location}: {SECTION}")
    transfer = content.get("transfer")
    named = transfer.content if transfer and isinstance(transfer.content, Mapping) else {}
    tasks = named.get("tasks")
    for task in tasks.content.values() if tasks and isinstance(tasks.content, Mapping) else ():
        space = task.content.get("space") if isinstance(task.content, Mapping) else None
        if space:
            yield from _entries(space)


def _words(node: Node) -> Iterator[Node]:
    if node.content is None:
        return
    for child in node.content if isinstance(node.content, tuple) else (node,):
        if not isinstance(child.content, str) or not child.word:
            shown = shorten(child.text) or "nothing"
            raise child.error(SECTION, f"{shown} must be a file (./mine.py) or a module")
        yield child
