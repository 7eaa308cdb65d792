"""Values of a database: their times, and a check for rows that people edited by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Boolean, Column, DateTime, Double, Integer

_TIME = re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01]) ([01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}")
_LEAST: Mapping[str, float] = {"submissions.priority": -math.inf, "submissions.max_lanes": 1}
"""The least value of whole numbers, if it is not 0."""
_ABOVE_ZERO = {"submissions.weight"}
_LISTS: Mapping[str, set[type]] = {
    "studies.tags": {str},
    "architectures.knots": {bool, int, float},
    "sources.plugins": {dict},
    "changes.differences": {list},
    "claim_events.claims": {dict},
}
"""JSON columns that hold a list -> the types of its items; all others hold an object."""
_ANY_JSON = {"checkpoints.past", "checkpoints.known"}
_OBJECTS: Mapping[str, set[type]] = {
    "trials.params": {bool, int, float, str},
    "trials.draws": {bool, int, float},
    "trials.constraints": {bool, int, float, type(None)},
}
"""JSON columns that hold an object of plain values -> their types."""
_SECTIONS = ("task", "model", "optimizer", "training")
"""Sections that each configuration has."""
_LONGEST = 40
"""The most characters of a value that are shown."""
_decode = json.JSONDecoder().decode


def read_time(value: str | datetime) -> datetime:
    """Return a stored time with its zone; SQLite's times are UTC and do not say so."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def find_broken_columns(columns: Sequence[Column[Any]], rows: Sequence[Sequence[Any]]) -> list[Column[Any]]:
    """Return the columns in which some row has a value that Graft does not write.

    A column is looked at as a whole: value by value takes four times as long.
    """
    by_column = zip(columns, zip(*rows, strict=True), strict=True) if rows else ()
    return [column for column, values in by_column if find_broken_rule(column, values)]


def describe_value(column: Column[Any], key: Mapping[str, Any], value: Any, rule: str) -> str:
    """Describe a wrong value: its row's primary key, the value, and the rule that it breaks."""
    row = ", ".join(f"{name} {part}" for name, part in key.items())
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    cell = f"{column.name} in the row of {column.table.name} with {row}"
    return f"{cell} is {shown}; it must be {rule}"


def find_broken_rule(column: Column[Any], values: Sequence[Any]) -> str | None:
    """Return the rule that one or more of a column's values break; None if all are legal."""
    if None in values:
        if not column.nullable:
            return "given (not NULL)"
        values = [value for value in values if value is not None]
    name, kind = f"{column.table.name}.{column.name}", column.type
    types = set(map(type, values))
    if isinstance(kind, JSON):
        rules = (_broken_json(name, value, may_be_null=bool(column.nullable)) for value in values)
        return next(filter(None, rules), None)
    if isinstance(kind, Boolean):
        return None if types <= {bool, int, float} and set(values) <= {0, 1} else "true or false"
    if isinstance(kind, DateTime):
        are_times = all(isinstance(value, datetime) or _is_time(value) for value in set(values))
        return None if are_times else "a time such as 2026-01-31 12:00:00.000000"
    if isinstance(kind, Integer):
        least = _LEAST.get(name, 0)
        if types <= {int, bool} and min(values, default=least) >= least:
            return None
        return "a whole number" + (f", {least} or more" if math.isfinite(least) else "")
    if isinstance(kind, Double):
        are_finite = types <= {int, float} and all(map(math.isfinite, values))
        if are_finite and (name not in _ABOVE_ZERO or min(values, default=1) > 0):
            return None
        return "a finite number" + (" above 0" if name in _ABOVE_ZERO else "")
    return None if types <= {str} else "a text"


def _is_time(text: Any) -> bool:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _broken_json(name: str, text: Any, *, may_be_null: bool) -> str | None:
    try:
        # The driver of PostgreSQL has decoded it.
        value: Any = _decode(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return "JSON"
    if name in _ANY_JSON or (value is None and may_be_null):
        return None
    if name in _LISTS:
        is_list = isinstance(value, list) and set(map(type, value)) <= _LISTS[name]
        return None if is_list else "a JSON list"
    if not isinstance(value, dict):
        return "a JSON object"
    if name in _OBJECTS and not set(map(type, value.values())) <= _OBJECTS[name]:
        return "a JSON object of plain values"
    if name == "trials.config" and any(type(value.get(section)) is not dict for section in _SECTIONS):
        return f"a JSON object with the sections {', '.join(_SECTIONS)}"
    return None
