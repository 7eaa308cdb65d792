"""Plug-ins from outside the package, as the texts of their files, which a study stores and runs.

A *bundle* is one folder's plug-ins with every local file that they import. Its modules are imported
from their texts, under a package that is named by their hash: two versions of a file can be loaded
side by side, an object of one can be pickled, and a worker needs the texts alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from spaces.errors import PluginError
from spaces.plugins.digests import Data

PREFIX = "graft_plugins_"
"""Start of the names of the packages that bundles are imported as."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One Python file."""

    module: str
    """Its dotted name, as the files of its bundle import it."""
    path: str
    """The path that it was read from."""
    text: str
    is_package: bool = False
    """True for the `__init__.py` of a package."""

    @property
    def sha256(self) -> str:
        """The file's SHA-256, in hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Member:
    """A plug-in that a file defines; found without importing it."""

    family: str
    """The family's word: `scorer`, `task` ..."""
    name: str
    module: str
    line: int
    origin: str
    """The source as a person writes it: `./mine.py`, `mypackage.tasks`, `graft-extra 1.2`."""

    @property
    def title(self) -> str:
        """Say which plug-in it is and where it stands, such as `scorer 'mine' of ./mine.py:12`."""
        return f"{self.family} {self.name!r} of {self.origin}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """The plug-ins of one folder, or of one package, and all local files that they import."""

    sources: tuple[Source, ...]
    members: tuple[Member, ...]
    is_installed: bool = False
    """True if the entry point of an installed package offers it; else a space or a command does."""

    @property
    def package(self) -> str:
        """The package of its modules, equal for equal files wherever they lie."""
        return PREFIX + self.digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its files, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for source in sorted(self.sources, key=lambda source: source.module):
            digest.update(f"{source.module}\0{source.is_package:d}\0{source.sha256}\0".encode())
        return digest.hexdigest()[:16]

    @cached_property
    def by_module(self) -> Mapping[str, Source]:
        """Dotted name -> file."""
        return {source.module: source for source in self.sources}


@dataclass(frozen=True, kw_only=True, eq=False)
class Outside:
    """A study's plug-ins and data files that are not packaged; they win over packaged plug-ins."""

    bundles: tuple[Bundle, ...] = ()
    faults: tuple[str, ...] = ()
    """Faults of installed packages that offer plug-ins, a sentence each, for unknown names."""
    folder: Path | None = None
    """The folder of relative data paths; without one, the working folder, and no `data`."""
    data: dict[str, Data] = field(default_factory=dict[str, Data])
    """Files and folders by the space's names for them; a new one is added when it is met."""
    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Digest -> content of the files of `data`, for machines that may not have them."""
    _used: set[Bundle] = field(default_factory=set[Bundle])

    def names(self, family: str) -> list[str]:
        """Return the names of a family's plug-ins."""
        members = [member for bundle in self.bundles for member in bundle.members]
        return [member.name for member in members if member.family == family]

    def find(self, family: str, name: str) -> tuple[Bundle, Member] | None:
        """Return a plug-in and its bundle, now counted as used; None for an unknown name."""
        for bundle in self.bundles:
            for member in bundle.members:
                if (member.family, member.name) == (family, name):
                    self._used.add(bundle)
                    return bundle, member
        return None

    @property
    def asked_for(self) -> tuple[Bundle, ...]:
        """The bundles of a study: those not installed, those used, and those with diagnostics."""
        return tuple(
            bundle
            for bundle in self.bundles
            if not bundle.is_installed
            or bundle in self._used
            or any(member.family == "diagnostic" for member in bundle.members)
        )

    def __or__(self, other: Outside) -> Outside:
        """Return both; where names meet, the left one's count."""
        known = {(member.family, member.name) for bundle in self.bundles for member in bundle.members}
        more = [bundle for bundle in other.bundles if known.isdisjoint((m.family, m.name) for m in bundle.members)]
        bundles, faults = (*self.bundles, *more), (*self.faults, *other.faults)
        return Outside(bundles=bundles, faults=faults, folder=self.folder, data=self.data)


def check_distinct(members: Iterable[Member], packaged: Mapping[str, Sequence[str]]) -> None:
    """Raise PluginError for a name that two members, or a member and a `packaged` one, have."""
    known: dict[tuple[str, str], Member] = {}
    for member in members:
        key = member.family, member.name
        if member.name in packaged.get(member.family, ()):
            clash = f"Graft has a {member.family} of this name; rename the file"
            raise PluginError(f"{member.title}: {clash}")
        if key in known:
            clash = f"this name is taken by {known[key].title}; rename one of the two files"
            raise PluginError(f"{member.title}: {clash}")
        known[key] = member
