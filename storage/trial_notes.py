"""Stars, tags and notes of trials: what people say of them, which no run reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, delete, insert, select

from spaces.errors import StudyError
from storage.schema import studies, trial_notes, trials

WORDS = ("starred", "tags", "note")
"""Words of a condition on trials, and what they stand for; `tags` is a text: `tags LIKE '%x%'`."""


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

    Raises StudyError, and writes nothing, if the study does not have all of the trials.
    """
    # Two people may write at once on a server: the row of the study makes one wait for the other.
    connection.execute(select(studies.c.id).where(studies.c.id == study_id).with_for_update())
    mine = (trials.c.study_id == study_id, trials.c.number.in_(numbers))
    there = connection.scalars(select(trials.c.number).where(*mine))
    if missing := sorted(set(numbers) - set(there)):
        raise StudyError(f"the study has no trial {missing[0]}")
    these = trial_notes.c.study_id == study_id, trial_notes.c.number.in_(numbers)
    before = {row.number: row for row in connection.execute(select(trial_notes).where(*these))}
    connection.execute(delete(trial_notes).where(*these))
    for number in dict.fromkeys(numbers):
        old = before.get(number)
        tags = {*(old.tags.split() if old else ()), *added} - {*removed}
        row = {
            "starred": starred if starred is not None else bool(old and old.starred),
            "tags": " ".join(sorted(tags)),
            "note": note if note is not None else old.note if old else "",
        }
        if any(row.values()):
            connection.execute(insert(trial_notes).values(study_id=study_id, number=number, **row))
