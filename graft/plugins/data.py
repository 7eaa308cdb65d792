"""The files that a study's trials read: the stored versions against the present ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from graft.plugins.families import families
from graft.plugins.stored import read_outside
from spaces import parse_stored
from spaces.plugins.active import using
from spaces.plugins.bundles import Outside
from spaces.plugins.digests import Data
from spaces.plugins.files import list_changes
from storage.frames import Reader


class DataChange(NamedTuple):
    """A file or folder that differs from a study's version."""

    name: str
    now: Data | None
    """The present version; None if there is none."""
    description: str


def collect_data(reader: Reader, study: str, outside: Outside) -> None:
    """Add to `outside.data` the data that draws of a study's space read, if it is missing there."""
    with using(outside):
        parse_stored(reader.study(study).row, families()).check()


def find_changed_data(reader: Reader, study: str, data: Mapping[str, Data] | None = None) -> list[DataChange]:
    """Return the files of a study that differ from the versions in `data` (None: the study's own).

    Data without a file, such as texts of a hub, is read again to be compared (`collect_data`).
    """
    outside = read_outside(reader, study)
    known = outside.data if data is None else data
    changes = [DataChange(*change) for change in list_changes(known)]
    fileless = {name: version for name, version in known.items() if not version.path}
    if fileless:
        fresh = replace(outside, data={name: version for name, version in known.items() if version.path})
        collect_data(reader, study, fresh)
        changes += [
            DataChange(name, now, version.describe_change(name, now))
            for name, version in fileless.items()
            if (now := fresh.data.get(name)) and now.digest != version.digest
        ]
    return changes
