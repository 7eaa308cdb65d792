"""The fingerprints of a controlled study: the conditions of its trials' numbers, and their trials.

A row stands for one way to compute: two trials of one row differ in their configurations alone. Its
`sources` grow with the plug-ins that its trials use. A trial that was resumed under another
fingerprint has a row of its own, whose `previous` is that of its earlier steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from spaces.records import Fingerprint, Report
from storage.clock import Now
from storage.databases.database import Insert
from storage.schema import fingerprints, trials


@dataclass(frozen=True, kw_only=True)
class FingerprintRow:
    """A row of `fingerprints`."""

    number: int
    previous: int | None
    scalars: tuple[int | str | None, ...]
    """numerics, version, code, torch, processor, compiler, step_kind."""
    sources: Mapping[str, str]
    """Plug-in -> SHA-256 of its source."""

    def extend(self, sources: Mapping[str, str]) -> FingerprintRow | None:
        """Return the row with more plug-ins; None if it has another version of one of them."""
        if sources.items() <= self.sources.items():
            return self
        if any(self.sources.get(plugin, digest) != digest for plugin, digest in sources.items()):
            return None
        return replace(self, sources={**self.sources, **sources})


_SCALARS = ("numerics", "version", "code", "torch", "processor", "compiler", "step_kind")
_COLUMNS = (fingerprints.c.number, fingerprints.c.previous, *(fingerprints.c[name] for name in _SCALARS))


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """The rows that a transaction wrote, to be remembered once it is committed."""

    rows: Sequence[FingerprintRow]
    """All rows of the study."""
    numbers: Mapping[int, int]
    """Number of a trial -> number of its row."""


class FingerprintTable:
    """The fingerprints of one study; its only controller writes them, so it reads them once."""

    def __init__(self, study_id: int, version: str) -> None:
        """`version` is Graft's, the controller's as well as the workers'."""
        self._study_id = study_id
        self._version = version
        self._rows: Sequence[FingerprintRow] | None = None
        self._numbers: dict[int, int] = {}
        """Number of a running trial -> that of its row."""
        self._known: dict[tuple[Fingerprint, int | None], int] = {}
        """A fingerprint, and the earlier row of its trial -> the row of its trial."""

    def assign(self, connection: Connection, insert: Insert, reports: Iterable[Report]) -> Assigned:
        """Write the rows of these reports; return each trial's row. `keep` remembers them."""
        numbers: dict[int, int] = {}
        rows = list(self._rows if self._rows is not None else _read(connection, self._study_id))
        changed: dict[int, FingerprintRow] = {}
        for report in reports:
            if report.fingerprint is None:
                continue
            current = numbers.get(report.number, self._numbers.get(report.number))
            number = self._known.get((report.fingerprint, current))
            if number is None:
                row = self._row_for(rows, report.fingerprint, current)
                number = row.number
                if number == len(rows) or rows[number] is not row:
                    rows[number:] = [row, *rows[number + 1 :]]
                    changed[number] = row
            numbers[report.number] = number
        _write(connection, insert, self._study_id, changed.values())
        return Assigned(rows=rows, numbers=numbers)

    def keep(self, assigned: Assigned, reports: Iterable[Report]) -> None:
        """Remember what was committed for these reports."""
        self._rows = assigned.rows
        for report in reports:
            number = assigned.numbers.get(report.number)
            if number is not None and report.fingerprint is not None:
                self._known[report.fingerprint, self._numbers.get(report.number)] = number
                self._known[report.fingerprint, number] = number
                self._numbers[report.number] = number

    def resume(self, numbers: Mapping[int, int]) -> None:
        """Remember the rows of trials that resume from checkpoints."""
        self._numbers.update(numbers)

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget the fingerprints of trials that no longer run."""
        for number in numbers:
            self._numbers.pop(number, None)

    def _row_for(self, rows: Sequence[FingerprintRow], fingerprint: Fingerprint, current: int | None) -> FingerprintRow:
        """Return the row of a trial with this fingerprint, which had the row `current` before."""
        scalars = (
            fingerprint.numerics,
            self._version or None,
            *(getattr(fingerprint, name) for name in _SCALARS[2:]),
        )
        sources = dict(fingerprint.sources)
        row = rows[current] if current is not None else None
        if row and row.scalars == scalars and (extended := row.extend(sources)):
            return extended
        for row in rows:
            is_alike = (row.scalars, row.previous) == (scalars, current)
            if is_alike and (extended := row.extend(sources)):
                return extended
        return FingerprintRow(number=len(rows), previous=current, scalars=scalars, sources=sources)


def read_numbers(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    """Map the numbers of trials to those of their fingerprints' rows, for the ids that have one."""
    c = trials.c
    these = select(c.number, c.fingerprint).where(c.id.in_(ids), c.fingerprint.is_not(None))
    return {number: row for number, row in connection.execute(these)}  # noqa: C416


def _read(connection: Connection, study_id: int) -> list[FingerprintRow]:
    c = fingerprints.c
    these = select(*_COLUMNS, c.sources).where(c.study_id == study_id).order_by(c.number)
    return [
        FingerprintRow(number=row[0], previous=row[1], scalars=row[2:-1], sources=row[-1])
        for row in map(tuple, connection.execute(these))
    ]


def _write(connection: Connection, insert: Insert, study_id: int, rows: Iterable[FingerprintRow]) -> None:
    values: list[dict[str, Any]] = [
        {
            "study_id": study_id,
            "number": row.number,
            "previous": row.previous,
            **dict(zip(_SCALARS, row.scalars, strict=True)),
            "sources": dict(sorted(row.sources.items())),
        }
        for row in rows
    ]
    if not values:
        return
    statement = insert.values(created_at=Now())
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["study_id", "number"], set_={"sources": insert.excluded["sources"]}
        ),
        values,
    )
