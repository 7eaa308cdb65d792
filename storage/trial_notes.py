"""Stars, tags and notes of trials: what people say of them, which no run reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from spaces.errors import StudyError
from storage.schema import studies, trial_notes, trials

WORDS = ("starred", "tags", "note")
"""Words of a condition on trials, and what they stand for; `tags` is a text: `tags LIKE '%x%'`."""
_AT_ONCE = 10_000
"""Numbers in a statement, of which PostgreSQL takes 65,535."""


def spell(word: str) -> str:
    """Return the SQL of one of WORDS over `trials`; false or an empty text without a row."""
    where = "study_id = trials.study_id AND number = trials.number"
    query = f"SELECT {word} FROM trial_notes WHERE {where}"
    return f"coalesce(({query}), {'FALSE' if word == 'starred' else repr('')})"


def write(
    connection: Connection,
    study_id: int,
    numbers: Sequence[int],
    *,
    starred: bool | None = None,
    added: Collection[str] = (),
    removed: Collection[str] = (),
    note: str | None = None,
) -> None:
    """Star trials or not, add and remove tags, and replace the note; None leaves what is there.

    Raises StudyError if the study does not have all of the trials; the transaction is then to be
    rolled back.
    """
    # Two people may write at once on a server: the row of the study makes one wait for the other.
    connection.execute(select(studies.c.id).where(studies.c.id == study_id).with_for_update())
    these = sorted(set(numbers))
    for start in range(0, len(these), _AT_ONCE):
        part = these[start : start + _AT_ONCE]
        before = _take(connection, study_id, part)
        for number in part:
            old = before.get(number)
            tags = {*(old.tags.split() if old else ()), *added} - {*removed}
            row = {
                "starred": starred if starred is not None else bool(old and old.starred),
                "tags": " ".join(sorted(tags)),
                "note": note if note is not None else old.note if old else "",
            }
            if any(row.values()):
                connection.execute(insert(trial_notes).values(study_id=study_id, number=number, **row))


def _take(connection: Connection, study_id: int, numbers: Sequence[int]) -> dict[int, Any]:
    """Delete the notes of trials and return their rows by number; StudyError if a trial is missing."""
    mine = trials.c.study_id == study_id, trials.c.number.in_(numbers)
    if missing := sorted(set(numbers) - set(connection.scalars(select(trials.c.number).where(*mine)))):
        raise StudyError(f"the study has no trial {missing[0]}")
    noted = trial_notes.c.study_id == study_id, trial_notes.c.number.in_(numbers)
    rows = {row.number: row for row in connection.execute(select(trial_notes).where(*noted))}
    connection.execute(delete(trial_notes).where(*noted))
    return rows
