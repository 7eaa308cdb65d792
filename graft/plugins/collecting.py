"""Plug-ins from outside: those of a space, of a command and of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from graft.plugins.families import FAMILIES, packaged_names
from spaces.errors import PluginError, SpaceError
from spaces.plugins.bundles import Bundle, Outside, check_distinct
from spaces.plugins.indexing import Indexer
from spaces.reading.plugins_section import Entry, read_entries, read_entries_of

GROUP = "graft.plugins"
"""The group of entry points by which a package offers modules or packages of plug-ins."""


def plugins_of_space(origin: str, asked: Sequence[str] = (), overrides: Mapping[str, str] | None = None) -> Outside:
    """Return the plug-ins of a space file, of `--plugins` (`asked`) and of installed packages.

    Nothing is imported. Raises SpaceError or PluginError, one line, for a file that cannot be read,
    defines no plug-in, or has a name that is taken.
    """
    return _collect([*read_entries(origin, overrides), *_entries(asked)], _folder_of(origin))


def plugins_of_text(text: str, origin: str, overrides: Mapping[str, str] | None = None) -> Outside:
    """Return the plug-ins of a space's text, relative to the folder of `origin` if it is a file."""
    return _collect(read_entries_of(text, origin, overrides), _folder_of(origin))


def plugins_asked_for(asked: Sequence[str] = ()) -> Outside:
    """Return the plug-ins of `--plugins` and of installed packages."""
    return _collect(_entries(asked))


def _entries(asked: Iterable[str]) -> Iterator[Entry]:
    for text in asked:
        yield Entry(text, Path.cwd(), "--plugins")


def _folder_of(origin: str) -> Path:
    """Return the base of a space's paths of data: its file's folder, or the working folder."""
    return (Path(origin).parent if Path(origin).is_file() else Path()).absolute()


def _collect(entries: Iterable[Entry], folder: Path | None = None) -> Outside:
    indexer = Indexer({place: family for family, place in FAMILIES.items()})
    for entry in entries:
        try:
            indexer.add(entry.text, entry.folder)
            _check_names(indexer.bundles)
        except PluginError as error:
            raise SpaceError(f"{entry.location}: {error}") from error
    faults: list[str] = []
    # Sorted, since the order must not depend on how packages were installed.
    for offer in sorted(entry_points(group=GROUP), key=lambda offer: (offer.value, offer.name)):
        origin = f"{offer.dist.name} {offer.dist.version}" if offer.dist else offer.value
        more = indexer.copy()
        try:
            more.add(offer.module, Path.cwd(), origin=origin, is_installed=True)
            _check_names(more.bundles)
        except PluginError as error:
            faults.append(f"the installed package {origin} offers {offer.value}, but {error}")
        else:
            indexer = more
    return Outside(bundles=indexer.bundles, faults=tuple(faults), folder=folder)


def _check_names(bundles: Iterable[Bundle]) -> None:
    members = [member for bundle in bundles for member in bundle.members]
    check_distinct(members, {member.family: packaged_names(member.family) for member in members})
