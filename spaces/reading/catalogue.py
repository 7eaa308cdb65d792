"""The sources of a space's text: a file, or the spaces that are part of the program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from spaces.errors import SpaceError
from spaces.messages import no_such, shorten
from spaces.plugins.resources import are_limited

_CATALOGUE = resources.files("spaces") / "catalogue"
_SUFFIX = ".yaml"


def packaged_spaces() -> list[str]:
    """Return the names of the packaged spaces, sorted: `quick/set_complement`, `set_complement`."""
    return sorted(_list_names(_CATALOGUE, ""))


def read_text(origin: str) -> str:
    """Return the text of the file `origin` or, if there is none, of the packaged space.

    `spaces/set_complement.yaml` is the packaged space `set_complement`, too, as papers and notes
    name spaces. Raises SpaceError for an unknown name, a directory, or a file that cannot be read
    or is not UTF-8.
    """
    # Not by Path, which raises OSError for a name that no file can have, as one of 300 characters.
    may_be_file = not are_limited()
    if may_be_file and os.path.isdir(origin):
        raise SpaceError(f"{origin}: this is a directory; name the space file in it")
    if may_be_file and os.path.exists(origin):
        try:
            return _decode(Path(origin).read_bytes(), origin)
        except OSError as error:
            raise SpaceError(f"{Path(origin)}: it cannot be read: {error.strerror}") from error
    name = origin
    if origin.startswith("spaces/"):
        name = origin.removeprefix("spaces/").removesuffix(_SUFFIX)
    if name in packaged_spaces():
        return _decode((_CATALOGUE / (name + _SUFFIX)).read_bytes(), origin)
    choices = no_such("packaged space", origin, packaged_spaces())
    raise SpaceError(f"{shorten(origin)}: no such file, and {choices}")


def find_beside(origin: str, file: str) -> str:
    """Return the file `origin` in the folder of `file`, or `origin` itself if there is none."""
    beside = os.path.join(os.path.dirname(file), origin)
    return beside if not are_limited() and os.path.isfile(beside) else origin


def _list_names(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _list_names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield prefix + entry.name.removesuffix(_SUFFIX)


def _decode(content: bytes, origin: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise SpaceError(f"{origin}:{line}: byte 0x{byte:02x} is not UTF-8") from error
