"""The files of a study's plug-ins from outside, as rows of `sources`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, insert, select, update

from spaces.errors import RowError
from spaces.plugins.bundles import Bundle, Member, Source
from storage.schema import sources


class StoredBundle(NamedTuple):
    """A bundle of a study, and its successor."""

    number: int
    successor: int | None
    """None if the study runs this bundle."""
    bundle: Bundle


def write(connection: Connection, study_id: int, bundles: Sequence[Bundle], first: int = 0) -> None:
    """Write the files of a study's bundles, which get the numbers from `first` on."""
    rows = [
        {
            "study_id": study_id,
            "bundle": number,
            "module": source.module,
            "path": source.path,
            "is_package": source.is_package,
            "sha256": source.sha256,
            "text": source.text,
            "plugins": [
                {name: value for name, value in asdict(member).items() if name != "module"}
                for member in bundle.members
                if member.module == source.module
            ],
        }
        for number, bundle in enumerate(bundles, first)
        for source in bundle.sources
    ]
    if rows:
        connection.execute(insert(sources), rows)


def add(connection: Connection, study_id: int, bundles: Sequence[Bundle]) -> None:
    """Write bundles beside those that the study has."""
    newest = select(func.max(sources.c.bundle)).where(sources.c.study_id == study_id)
    highest = connection.scalar(newest)
    write(connection, study_id, bundles, 0 if highest is None else highest + 1)


def replace(connection: Connection, study_id: int, fresh: Mapping[int, Bundle]) -> None:
    """Write bundles that replace others, by these ones' numbers; those stay, for their trials."""
    c = sources.c
    first = (connection.scalar(select(func.max(c.bundle)).where(c.study_id == study_id)) or 0) + 1
    write(connection, study_id, [*fresh.values()], first)
    for successor, number in enumerate(fresh, first):
        this = update(sources).where(c.study_id == study_id, c.bundle == number)
        connection.execute(this.values(successor=successor))


def choose(stored: Sequence[StoredBundle], digests: Collection[str]) -> list[Bundle]:
    """Return the bundles that a study runs: the newest, or versions whose digests are these."""
    by_number = {version.number: version for version in stored}
    chosen = {version.number: version.bundle for version in stored if version.successor is None}
    for version in stored:
        if version.bundle.digest in digests:
            last = version
            while last.successor is not None:
                last = by_number[last.successor]
            chosen[last.number] = version.bundle
    return [*chosen.values()]


def read(rows: Iterable[Mapping[str, Any]]) -> Iterator[StoredBundle]:
    """Yield the bundles of ordered rows; RowError for a text that is not the stored one."""
    ordered = groupby(rows, key=lambda row: (row["bundle"], row["successor"]))
    for (number, successor), files in ordered:
        modules, members = list[Source](), list[Member]()
        for row in files:
            path, is_package = row["path"], bool(row["is_package"])
            source = Source(module=row["module"], path=path, text=row["text"], is_package=is_package)
            if source.sha256 != row["sha256"]:
                problem = "has another SHA-256 than was stored with it"
                raise RowError(f"the stored source of {path} {problem}")
            modules.append(source)
            plugins = json.loads(row["plugins"])
            members += [Member(**plugin, module=source.module) for plugin in plugins]
        yield StoredBundle(number, successor, Bundle(sources=tuple(modules), members=tuple(members)))
