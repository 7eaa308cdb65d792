"""The changes of a study, read from a cursor on.

The cursor is the place of the last ended trial in the order of ends (`trials.ended`), which the
study's one controller counts up, one transaction after another: nothing comes to lie before a
cursor that was given out, whatever clocks say. A client that lost its connection misses nothing.
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
"""Trials that one event tells, at most."""
_SECONDS = 5.0
"""Seconds after which counts are read though no trial has ended: some may have been started."""


def describe_standing(state: str, planned: int, counts: Mapping[State, int]) -> str:
    """Return a study's standing as page.js writes it of a Change: it redraws if they differ."""
    counted = itertools.chain.from_iterable(sorted(counts.items()))
    return " ".join(map(str, (state, planned, *counted)))


@final
class Follower:
    """Reads the changes of one study again and again."""

    def __init__(self, reader: Reader, study: StudyReader, cursor: int | None) -> None:
        """Start after `cursor`; None: with what happens from now on."""
        self._reader, self._name = reader, str(study.row["name"])
        if cursor is None:
            last = study.trials("ended IS NOT NULL", "ended DESC", 1, ("ended",))
            cursor = last.item() if last.height else 0
        self.cursor = cursor
        self._seen: tuple[object, ...] = ()
        self._told: Change | None = None
        self._read_at = 0.0

    def look(self) -> Change | None:
        """Return the change since the last look, or None; StudyError if the study is gone."""
        study = self._reader.study(self._name)
        seen = tuple(study.row[name] for name in ("state", "steps", "trials", "updated_at"))
        now = time.monotonic()
        more = self._told is not None and self._told.more
        if seen == self._seen and not more and now < self._read_at + _SECONDS:
            return None
        self._seen, self._read_at = seen, now
        columns = (*EndedTrial.model_fields, "ended")
        rows = study.trials(f"ended > {self.cursor} AND finished_at IS NOT NULL", "ended", MOST_ENDED, columns)
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
        last = self._told and self._told.model_copy(update={"ended": [], "more": False})
        if not change.ended and change == last:
            return None
        self._told = change
        return change
