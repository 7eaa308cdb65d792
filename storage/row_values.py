"""Whether each value of a database is one that Graft writes there: a row that was edited by hand may hold anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Boolean, Column, DateTime, Double, Integer, Table

from storage.frames import Reader
from storage.schema import metadata, metrics

_TIME = re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01]) ([01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}")
_MAY_BE_NEGATIVE = {"submissions.priority"}
_ABOVE_ZERO = {"submissions.weight"}
_LISTS: Mapping[str, type | tuple[type, ...]] = {
    "studies.tags": str,
    "architectures.knots": (int, float),
    "sources.plugins": dict,
    "changes.differences": list,
}
"""JSON columns that hold a list -> of what; all others hold an object."""
_ANY_JSON = {"checkpoints.past", "checkpoints.known"}
_OBJECT_OF: Mapping[str, tuple[type, ...]] = {
    "trials.params": (int, float, str, bool),
    "trials.draws": (int, float),
    "trials.constraints": (int, float, type(None)),
}
_SECTIONS = ("task", "model", "optimizer", "training")
"""What each configuration has."""
_LONGEST = 40
"""Characters of a value that are shown."""


def find_strange_values(reader: Reader) -> Iterator[str]:
    """A line for each value that no Graft writes: where it is, what it is, and what it must be.

    Metrics are looked at by rules of their own (`checking`): there may be a hundred million.
    """
    for table in metadata.sorted_tables:
        if table is not metrics:
            yield from _look_at(reader, table)


def _look_at(reader: Reader, table: Table) -> Iterator[str]:
    columns = list(table.columns)
    keys = [column.name for column in table.primary_key]
    for row in reader.rows(f"SELECT {', '.join(column.name for column in columns)} FROM {table.name}"):
        values = dict(zip((column.name for column in columns), row, strict=True))
        for column in columns:
            if rule := _broken_rule(column, values[column.name]):
                key = ", ".join(f"{name} {values[name]}" for name in keys)
                shown = repr(values[column.name])
                shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
                yield f"{column.name} in the row of {table.name} with {key} is {shown}; it must be {rule}"


def _broken_rule(column: Column[Any], value: Any) -> str | None:
    """What a value must be, and is not; None: it is."""
    if value is None:
        return None if column.nullable else "given (not NULL)"
    name, kind = f"{column.table.name}.{column.name}", column.type
    if isinstance(kind, JSON):
        return _broken_json(name, value, may_be_null=bool(column.nullable))
    if isinstance(kind, Boolean):
        return None if value in (0, 1) else "true or false"
    if isinstance(kind, DateTime):
        is_time = isinstance(value, datetime) or (isinstance(value, str) and _is_time(value))
        return None if is_time else "a time such as 2026-01-31 12:00:00.000000"
    if isinstance(kind, Integer):
        is_whole = isinstance(value, int) and (value >= 0 or name in _MAY_BE_NEGATIVE)
        return None if is_whole else "a whole number" + ("" if name in _MAY_BE_NEGATIVE else ", 0 or more")
    if isinstance(kind, Double):
        is_finite = isinstance(value, int | float) and math.isfinite(value)
        is_finite = is_finite and (value > 0 or name not in _ABOVE_ZERO)
        return None if is_finite else "a finite number" + (" above 0" if name in _ABOVE_ZERO else "")
    return None if isinstance(value, str) else "a text"


def _is_time(text: str) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _broken_json(name: str, text: Any, *, may_be_null: bool) -> str | None:
    try:
        value: Any = json.loads(text) if isinstance(text, str | bytes) else text
    except ValueError:
        return "JSON"
    if name in _ANY_JSON or (value is None and may_be_null):
        return None
    if name in _LISTS:
        is_list = isinstance(value, list) and all(isinstance(one, _LISTS[name]) for one in value)
        return None if is_list else "a JSON list"
    if not isinstance(value, dict):
        return "a JSON object"
    if not all(isinstance(one, _OBJECT_OF.get(name, object)) for one in value.values()):
        return "a JSON object of plain values"
    if name == "trials.config" and not all(isinstance(value.get(section), dict) for section in _SECTIONS):
        return f"a JSON object with the sections {', '.join(_SECTIONS)}"
    return None
