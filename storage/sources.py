"""The files of a study's plug-ins from outside, as rows of `sources`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, insert

from spaces.errors import StorageError
from spaces.plugins.bundles import Bundle, Member, Source
from storage.schema import sources


def write(connection: Connection, study_id: int, bundles: Sequence[Bundle]) -> None:
    """Write the files of a study's bundles."""
    rows = [
        {
            "study_id": study_id,
            "bundle": number,
            "module": source.module,
            "path": source.path,
            "is_package": source.is_package,
            "sha256": source.sha256,
            "text": source.text,
            "plugins": [_to_row(member) for member in bundle.members if member.module == source.module],
        }
        for number, bundle in enumerate(bundles)
        for source in bundle.sources
    ]
    if rows:
        connection.execute(insert(sources), rows)


def read(rows: Iterable[Mapping[str, Any]]) -> Iterator[Bundle]:
    """The bundles of a study's rows, which come in the order of bundles and modules.

    Raises StorageError for a text that is not the one that was stored.
    """
    for _, files in groupby(rows, key=lambda row: row["bundle"]):
        found, members = list[Source](), list[Member]()
        for row in files:
            source = Source(
                module=row["module"], path=row["path"], text=row["text"], is_package=bool(row["is_package"])
            )
            if source.sha256 != row["sha256"]:
                raise StorageError(f"the stored source of {source.path} has another SHA-256 than was stored with it")
            found.append(source)
            plugins = json.loads(row["plugins"])
            members += [Member(**one, module=source.module) for one in plugins]
        yield Bundle(sources=tuple(found), members=tuple(members))


def _to_row(member: Member) -> dict[str, Any]:
    return {name: value for name, value in asdict(member).items() if name != "module"}
