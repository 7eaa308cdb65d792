"""What changes in a study, read from a cursor on.

The cursor is the last trial that ended, by the database's clock and number: the one controller of a study writes these
one transaction after another, so that nothing comes to lie before a cursor that was given out. A client that lost its
connection names the cursor and misses nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self, final

from graft.stored.studies import read_best, read_state
from graft.web.models import Change, EndedTrial
from graft.web.security.refusals import RefusalError
from spaces.records import State
from storage.frames import Reader
from storage.frames.study import StudyReader

MOST_ENDED = 200
"""Trials that one event tells."""
_SECONDS = 5.0
"""After so long counts are read again though no trial has ended: trials may have been started."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, order=True)
class Cursor:
    """The last trial that ended."""

    microseconds: int
    """Since 1970, in UTC."""
    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`1767323045000000-17`; refused with 400 for what is none."""
        time_, dash, number = text.partition("-")
        if not (dash and all(part.isascii() and part.isdecimal() and len(part) < 18 for part in (time_, number))):
            raise RefusalError(400, f"{text[:40]!r} is no cursor; use the id of an event")
        return cls(int(time_), int(number))

    @classmethod
    def latest(cls, study: StudyReader) -> Self:
        """The one after which nothing has happened yet."""
        found = study.trials("finished_at IS NOT NULL", "finished_at DESC, number DESC", 1, ("number", "finished_at"))
        return cls.of(*found.row(0)) if found.height else cls(0, 0)

    @classmethod
    def of(cls, number: int, finished_at: datetime) -> Self:
        """That of a trial."""
        return cls((finished_at - _EPOCH) // timedelta(microseconds=1), number)

    def __str__(self) -> str:
        return f"{self.microseconds}-{self.number}"

    @property
    def condition(self) -> str:
        """SQL for the trials that ended after it."""
        at = f"'{_EPOCH + timedelta(microseconds=self.microseconds):%Y-%m-%d %H:%M:%S.%f}'"
        return f"finished_at >= {at} AND (finished_at > {at} OR number > {self.number})"


def describe_standing(state: str, planned: int, counts: Mapping[State, int]) -> str:
    """What a page shows of a study, as page.js writes it of a Change: it is drawn again once the two differ."""
    return " ".join(map(str, (state, planned, *itertools.chain.from_iterable(sorted(counts.items())))))


@final
class Follower:
    """Looks at one study again and again."""

    def __init__(self, reader: Reader, study: StudyReader, cursor: Cursor | None) -> None:
        """`cursor`: where to go on; None: with what happens from now on."""
        self._reader, self._name = reader, str(study.row["name"])
        self.cursor = cursor or Cursor.latest(study)
        self._seen: tuple[object, ...] = ()
        self._told: Change | None = None
        self._read_at = 0.0

    def look(self) -> Change | None:
        """What is another than at the last look, all of it at the first; None: nothing. StudyError if it is gone."""
        study = self._reader.study(self._name)
        seen = tuple(study.row[name] for name in ("state", "steps", "trials", "updated_at"))
        now = time.monotonic()
        more = self._told is not None and self._told.more
        if seen == self._seen and not more and now < self._read_at + _SECONDS:
            return None
        self._seen, self._read_at = seen, now
        change = self._read(study)
        if self._told and not change.ended and change == self._told.model_copy(update={"ended": [], "more": False}):
            return None
        self._told = change
        return change

    def _read(self, study: StudyReader) -> Change:
        columns = ("number", "state", "steps", "objective", "finished_at")
        rows = study.trials(self.cursor.condition, "finished_at, number", MOST_ENDED, columns)
        if rows.height:
            self.cursor = Cursor.of(rows["number"][-1], rows["finished_at"][-1])
        best, number = read_best(self._reader, study.row)
        return Change(
            state=read_state(self._reader, study.row),
            counts={**study.counts()},
            planned=study.row["trials"],
            best=best,
            best_number=number,
            ended=[EndedTrial(**row) for row in rows.drop("finished_at").iter_rows(named=True)],
            more=rows.height == MOST_ENDED,
        )
