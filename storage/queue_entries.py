"""Reading the service's queue: entries that Graft wrote, and rows that were edited by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from sqlalchemy import Column, ColumnElement, Connection, case, select, true, type_coerce
from sqlalchemy.types import NullType

from spaces.errors import RowError
from storage.row_values import describe_value, find_broken_columns, find_broken_rule, read_time
from storage.schema import studies, submissions

QueueState = Literal["waiting", "running", "paused", "cancelled", "done", "failed"]
OPEN: frozenset[QueueState] = frozenset({"waiting", "running", "paused"})
"""States of an entry whose study the service runs, or may run later."""


@dataclass(frozen=True, kw_only=True)
class QueueEntry:
    """The current entry of one study in the queue."""

    study_id: int
    study: str
    owner: str
    priority: int
    weight: float
    max_lanes: int | None
    state: QueueState
    reason: str
    """Why the study waits, failed, or has fewer lanes than it asks for; empty without a reason."""
    lanes: int
    """Lanes that train its trials now, as the service last recorded."""
    share: float
    """Its fair share of the service's lanes, a number of lanes."""
    trials: int
    seed: int
    submitted_at: datetime
    """The time in UTC, as the other times."""
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the entry of these values; times may be texts, as in JSON and SQLite's rows."""
        given = [name for name, value in values.items() if name.endswith("_at") and value is not None]
        times: dict[str, Any] = {name: read_time(values[name]) for name in given}
        return cls(**{**values, **times})

    @property
    def is_open(self) -> bool:
        """True if the service runs the study, or may run it later."""
        return self.state in OPEN


@dataclass(frozen=True)
class StrangeEntry:
    """A row of the queue that was edited by hand and has a value that Graft never writes."""

    study_id: int
    study: str
    is_to_run: bool
    fault: str
    """The wrong value, and the rule that it breaks."""


def read_entries(connection: Connection) -> list[QueueEntry]:
    """Return the open entries in order, then the newest others; RowError for a hand-edited row."""
    entries, strange = read_sound_entries(connection)
    if strange:
        raise RowError(f"a row is not what Graft writes: {strange[0].fault}")
    return entries


def read_open_entries(connection: Connection, others: Collection[int]) -> tuple[list[QueueEntry], list[StrangeEntry]]:
    """Return the entries that are open or of the studies `others`, as `read_sound_entries` does."""
    return _read(connection, submissions.c.state.in_(OPEN) | submissions.c.study_id.in_(others))


def read_sound_entries(connection: Connection, study: str | None = None) -> tuple[list[QueueEntry], list[StrangeEntry]]:
    """Return the entries as `read_entries` does, all or a study's, and apart impossible rows."""
    return _read(connection, true() if study is None else studies.c.name == study)


def _read(connection: Connection, condition: ColumnElement[bool]) -> tuple[list[QueueEntry], list[StrangeEntry]]:
    c = submissions.c
    # As the driver has them: SQLAlchemy raises an error for a time that is none.
    query = select(*(type_coerce(column, NullType()) for column in _ENTRY.values()))
    query = query.select_from(submissions.join(studies, studies.c.id == c.study_id))
    query = query.where(condition)
    open_first = case((c.state.in_(OPEN), 0), else_=1)
    query = query.order_by(open_first, c.priority.desc(), c.submitted_at, c.study_id)
    rows = connection.execute(query).all()
    broken = find_broken_columns([*_ENTRY.values()], rows)
    sound, strange = list[QueueEntry](), list[StrangeEntry]()
    for row in rows:
        values: dict[str, Any] = dict(zip(_ENTRY, row, strict=True))
        if fault := _find_fault(values) if broken else None:
            is_to_run = values["state"] in ("waiting", "running")
            strange.append(StrangeEntry(values["study_id"], str(values["study"]), is_to_run, fault))
        else:
            sound.append(QueueEntry.of(values))
    ended = [entry for entry in sound if not entry.is_open]
    ended.sort(key=lambda entry: entry.submitted_at, reverse=True)
    return [entry for entry in sound if entry.is_open] + ended, strange


_ENTRY: Mapping[str, Column[Any]] = {
    **{column.name: column for column in submissions.columns if column.name != "request"},
    "study": studies.c.name,
    "trials": studies.c.trials,
    "seed": studies.c.seed,
}
"""Field of QueueEntry -> its column."""


def _find_fault(values: Mapping[str, Any]) -> str | None:
    for name, column in _ENTRY.items():
        if rule := find_broken_rule(column, (values[name],)):
            [key] = column.table.primary_key
            return describe_value(column, {key.name: values["study_id"]}, values[name], rule)
    return None
