"""A space that comes over HTTP, read without running anything of it, or opening a file that it names.

On the machine itself a space may name files: plug-ins, texts, spaces of a transfer's tasks. Over the network that would
read, or run, files of the server, so that a space there names none; plug-ins alone can be allowed, one by one, by who
starts the server.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from graft.launching.claiming import new_study
from graft.launching.run import CHECKED_DRAWS
from graft.plugins.collecting import plugins_of_text
from graft.plugins.families import families
from graft.web.security.refusals import RefusalError
from spaces import parse
from spaces.grammar.nodes import Node, compose, read
from spaces.messages import shorten
from spaces.plugins.active import using
from spaces.reading.plugins_section import read_entries_of
from storage import NewStudy

_ORIGIN = "the space"
_HERE = "submit it on the server's machine, with `search submit`"


def read_submission(text: str, name: str | None, plugins: Collection[str]) -> NewStudy:
    """The study of a space's text, its draws checked; `name`: of the study, None: the space's.

    `plugins`: the entries that its section `plugins` may have. Refused with 403 for another one, or for a value that
    names a file; raises SpaceError or PluginError for what is no space.
    """
    for node in _list_values(read(compose(text, _ORIGIN))):
        is_text = node.word or node.content == ""  # an empty one is the folder of the server
        if is_text and node.word not in plugins and _names_file(node.word):
            raise RefusalError(403, f"{node.location}: {shorten(node.word)!r} would be a file of the server; {_HERE}")
    for entry in read_entries_of(text, _ORIGIN):
        if entry.text not in plugins:
            allowed = ", ".join(sorted(plugins)) or "none"
            reason = f"{entry.location}: {shorten(entry.text)!r} is not allowed here ({allowed}); {_HERE}"
            raise RefusalError(403, f"{reason}, or have the server started with --allow-plugins")
    with using(plugins_of_text(text, _ORIGIN)):
        space = parse(text, _ORIGIN, families())
        space.check(CHECKED_DRAWS)
        return new_study(space.name if name is None else name, space)


def _list_values(node: Node) -> Iterator[Node]:
    """All plain values of a space."""
    if isinstance(node.content, Mapping):
        for inner in node.content.values():
            yield from _list_values(inner)
    elif isinstance(node.content, tuple):
        for inner in node.content:
            yield from _list_values(inner)
    else:
        yield node


def _names_file(word: str) -> bool:
    """Whether a value leads out of the folder of the server, or is a file in it."""
    if word.startswith(("/", "~", "./", "../", "\\")) or "/../" in word or "://" in word:
        return True
    try:
        return Path(word).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False
