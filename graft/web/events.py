"""What changes in a study, read from a cursor on.

The cursor is the place of the last trial that ended in the order of ends (`trials.ended`), which the one controller of
a study counts up, one transaction after another: nothing comes to lie before a cursor that was given out, whatever
clocks say. A client that lost its connection names the cursor and misses nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import final

from graft.stored.studies import read_best, read_state
from graft.web.models import Change, EndedTrial
from spaces.records import State
from storage.frames import Reader
from storage.frames.study import StudyReader

MOST_ENDED = 200
"""Trials that one event tells."""
_SECONDS = 5.0
"""After so long counts are read again though no trial has ended: trials may have been started."""


def describe_standing(state: str, planned: int, counts: Mapping[State, int]) -> str:
    """Return a study's standing as page.js writes it of a Change: the page is drawn again once the two differ."""
    return " ".join(map(str, (state, planned, *itertools.chain.from_iterable(sorted(counts.items())))))


@final
class Follower:
    """Looks at one study again and again."""

    def __init__(self, reader: Reader, study: StudyReader, cursor: int | None) -> None:
        """`cursor`: where to go on; None: with what happens from now on."""
        self._reader, self._name = reader, str(study.row["name"])
        if cursor is None:
            last = study.trials("ended IS NOT NULL", "ended DESC", 1, ("ended",))
            cursor = last.item() if last.height else 0
        self.cursor = cursor
        self._seen: tuple[object, ...] = ()
        self._told: Change | None = None
        self._read_at = 0.0

    def look(self) -> Change | None:
        """Return the change since the last look, at the first all of it, None without one; StudyError if it is gone."""
        study = self._reader.study(self._name)
        seen = tuple(study.row[name] for name in ("state", "steps", "trials", "updated_at"))
        now = time.monotonic()
        more = self._told is not None and self._told.more
        if seen == self._seen and not more and now < self._read_at + _SECONDS:
            return None
        self._seen, self._read_at = seen, now
        columns = (*EndedTrial.model_fields, "ended")
        rows = study.trials(f"ended > {self.cursor}", "ended", MOST_ENDED, columns)
        if rows.height:
            self.cursor = rows["ended"][-1]
        best, number = read_best(self._reader, study.row)
        change = Change(
            state=read_state(self._reader, study.row),
            counts={**study.counts()},
            planned=study.row["trials"],
            best=best,
            best_number=number,
            ended=[EndedTrial(**row) for row in rows.drop("ended").iter_rows(named=True)],
            more=rows.height == MOST_ENDED,
        )
        if self._told and not change.ended and change == self._told.model_copy(update={"ended": [], "more": False}):
            return None
        self._told = change
        return change
