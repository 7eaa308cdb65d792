"""The plug-ins from outside that a study was launched with, and the changes of their files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from graft.plugins.families import FAMILIES
from spaces.errors import PluginError
from spaces.messages import list_some
from spaces.plugins.bundles import Bundle, Outside, Source
from spaces.plugins.indexing import Indexer
from storage.frames import Reader, open_reader


def read_outside(reader: Reader, study: str, digests: Collection[str] = ()) -> Outside:
    """Return the stored plug-ins that a study runs, and the files that its trials read.

    Versions with these `digests` replace the present ones. Raises StudyError for a missing study.
    """
    stored = reader.study(study)
    data = {
        name: next((version for version in versions if version.digest in digests), versions[-1])
        for name, versions in (stored.data() or {}).items()
    }
    return Outside(bundles=stored.bundles(digests), folder=Path.cwd(), data=data)


def plugins_of_study(url: str, study: str) -> Outside:
    """Return the plug-ins of a study as `read_outside` does, given the URL of its database."""
    with open_reader(url) as reader:
        return read_outside(reader, study)


def reread(reader: Reader, study: str) -> dict[int, Bundle]:
    """Read the bundles of a study whose files have changed, and return them by number.

    Raises PluginError for a file that cannot be read any more, or lacks one of its plug-ins.
    """
    fresh: dict[int, Bundle] = {}
    for number, successor, bundle in reader.study(study).stored_bundles():
        if successor is not None or not any(map(_has_changed, bundle.sources)):
            continue
        indexer = Indexer({place: family for family, place in FAMILIES.items()})
        for member in bundle.members:
            source = bundle.by_module[member.module]
            folder = Path(source.path).parents[member.module.count(".") + source.is_package]
            is_nested = "." in member.module or source.is_package
            indexer.add(member.module if is_nested else f"./{member.module}.py", folder, origin=member.origin)
        [fresh[number]] = indexer.bundles
        known = {(member.family, member.name) for member in fresh[number].members}
        for member in bundle.members:
            if (member.family, member.name) not in known:
                path = bundle.by_module[member.module].path
                raise PluginError(f"{path} defines no {member.family} any more")
    return fresh


def describe_changes(study: str, outside: Outside) -> str | None:
    """Return a line about the study's files on this machine that have changed, or None."""
    changed = [source for bundle in outside.bundles for source in bundle.sources if _has_changed(source)]
    if not changed:
        return None
    names = list_some([source.path for source in changed])
    verb = "has" if len(changed) == 1 else "have"
    return (
        f"{names} {verb} changed since {study} was launched; what is stored with it is run, `search plugin show "
        f"{study}` prints it; `search resume {study} --accept-changes` or another name (--study) takes the new one"
    )


def _has_changed(source: Source) -> bool:
    try:
        content = Path(source.path).read_bytes()
    except OSError:
        return False
    return content.removeprefix(b"\xef\xbb\xbf") != source.text.encode()
