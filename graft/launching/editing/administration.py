"""Renames, annotates, archives and deletes studies, and gives trials stars, tags and notes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from graft.launching.checkpoints import Checkpoints, folder_of
from spaces.errors import StudyError
from spaces.messages import shorten
from storage import annotate_study, check_name, open_reader, open_store

_TAG = re.compile(r"[\w.:+-]{1,60}")
LONGEST_NOTE = 10_000
"""The most characters of a note."""


def rename_study(url: str, study: str, name: str) -> None:
    """Rename a study; raises StudyError for a taken or invalid name, or if the study runs."""
    check_name(name)
    with open_store(url) as store, open_reader(url) as reader:
        row = reader.study(study).row
        if name in reader.studies()["name"]:
            raise StudyError(f"study {name!r} exists already; choose another name")
        edited = store.edit(row["id"])
        edited.keep_checkpoint_folder(folder_of(row))
        edited.rename(name)


def delete_study(url: str, study: str) -> None:
    """Delete a study, its trials and its checkpoints; raises StudyError if a process runs it."""
    with open_store(url) as store, open_reader(url) as reader:
        row = reader.study(study).row
        store.edit(row["id"]).delete()
    remove_checkpoints(url, row)


def remove_checkpoints(url: str, row: Mapping[str, Any]) -> None:
    """Remove the checkpoint files of a deleted study, given its row; other files stay."""
    saving = Checkpoints(url=None, seconds=0).saving(url, row)
    if saving is None:
        return
    folder = None if "://" in saving.url else Path(saving.url, saving.study)
    if folder and not folder.is_dir():
        return
    from workers.engine.checkpoints import Archive

    Archive(saving.url, saving.study).tidy((), ())
    if folder:
        with suppress(OSError):  # somebody keeps files there
            folder.rmdir()


def write_note(url: str, study: str, text: str) -> None:
    """Replace a study's note. The study may run, on a server or by the service of a file."""
    annotate_study(url, study, note=_check_note(text))


def mark_trials(
    url: str,
    study: str,
    numbers: Collection[int],
    *,
    starred: bool | None = None,
    added: Collection[str] = (),
    removed: Collection[str] = (),
    note: str | None = None,
) -> None:
    """Star trials or not, add and remove tags, and replace the note; None changes nothing.

    The study may run. Raises StudyError for a trial that it does not have.
    """
    _check_tags(added, removed)
    asked: dict[str, Any] = {"numbers": [*numbers], "added": [*added], "removed": [*removed]}
    if starred is not None:
        asked["starred"] = starred
    if note is not None:
        asked["note"] = _check_note(note)
    annotate_study(url, study, **asked)


def _check_note(text: str) -> str:
    if len(text) > LONGEST_NOTE:
        raise StudyError(f"the note has {len(text):,} characters; it may have {LONGEST_NOTE:,}")
    return text.replace("\0", " ")


def _check_tags(*several: Collection[str]) -> None:
    for texts in several:
        if isinstance(texts, str):  # its letters would be tags
            raise StudyError(f"tags: {texts!r} is one text; write [{texts!r}]")
        for tag in texts:
            if not _TAG.fullmatch(tag):
                raise StudyError(
                    f"tag {shorten(repr(tag))} must be a word of letters, digits, '.', ':', '+', '_' and '-'"
                )


def tag_study(url: str, study: str, added: Collection[str], removed: Collection[str] = ()) -> list[str]:
    """Add and remove tags of a study, and return all its tags, sorted."""
    _check_tags(added, removed)
    with open_reader(url) as reader:
        before = read_tags(reader.study(study).row)
    if missing := sorted(set(removed) - set(before)):
        raise StudyError(f"study {study!r} has no tag {missing[0]!r}; it has {', '.join(before) or 'none'}")
    tags = sorted({*before, *added} - set(removed))
    annotate_study(url, study, tags=tags)
    return tags


def archive_study(url: str, study: str, *, archived: bool) -> None:
    """Move a study to the archive, which is listed only on request, or back."""
    annotate_study(url, study, archived=archived)


def read_tags(row: Mapping[str, Any]) -> list[str]:
    """Return the tags of a row of `studies`."""
    return json.loads(row["tags"])
