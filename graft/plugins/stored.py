"""The plug-ins from outside that a study was launched with, and whether the files that they came from have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spaces.plugins.bundles import Bundle, Outside, Source
from storage.frames import Reader, open_reader

_NAMED = 3
"""Files that a line names."""


def read_outside(reader: Reader, study: str) -> Outside:
    """The plug-ins that a study runs, wherever its files have gone; raises StudyError if there is no such study."""
    return Outside(bundles=reader.bundles(study))


def plugins_of_study(url: str, study: str) -> Outside:
    """The same, from a database by its URL."""
    with open_reader(url) as reader:
        return read_outside(reader, study)


def describe_changes(study: str, outside: Outside) -> str | None:
    """A line that says which files are no longer what the study was launched with; None: none of those that are here.

    A file that is not on this machine has not changed: the study needs none.
    """
    changed = [source for source in _sources(outside.bundles) if _has_changed(source)]
    if not changed:
        return None
    names = ", ".join(source.path for source in changed[:_NAMED])
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    verb = "has" if len(changed) == 1 else "have"
    return (
        f"{names}{more} {verb} changed since {study} was launched; what is stored with it is run, "
        f"`search plugin show {study}` prints it, and a launch under another name (--study) takes the new one"
    )


def _sources(bundles: Iterable[Bundle]) -> Iterable[Source]:
    return (source for bundle in bundles for source in bundle.sources)


def _has_changed(source: Source) -> bool:
    try:
        content = Path(source.path).read_bytes()
    except OSError:
        return False
    return content.removeprefix(b"\xef\xbb\xbf") != source.text.encode()
