"""Requests to the process that writes a database, as they are sent, and their check."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from spaces.bounds import (
    LARGEST_INTEGER,
    LARGEST_SIZE,
    LARGEST_WEIGHT,
    LONGEST_OWNER,
    MOST_LANES,
    MOST_TRIALS,
    PRIORITIES,
)
from spaces.errors import MessageError, StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle, Member, Source
from storage.new_study import NewStudy, row_of

Action = Literal[
    "submit", "pause", "resume", "cancel", "reprioritise", "annotate", "look", "reveal", "make_token", "revoke_token"
]
"""The action that a request asks for.

The last five change nothing in the queue: `annotate` writes the note, tags or archived mark of a
study, or stars, tags and notes of its trials; `look` records that interim results of a study with a
claim were shown, `reveal` that its test results are opened; `make_token` and `revoke_token` write
the tokens of clients."""
_COLUMNS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "space", "space_hash", "objective", "direction"), (str,)),
    **dict.fromkeys(("version", "state"), (str,)),
    **dict.fromkeys(("seed", "trials", "numerics"), (int,)),
    "second_objective": (str, NoneType),
    "stop_requested": (bool,),
    "data": (dict,),
}
"""Fields of a submission's row, columns of its study as JSON values, and the types of each."""
_ANNOTATIONS: Mapping[str, type] = {"note": str, "tags": list, "archived": bool}
"""Fields of an annotation of a study, and their types."""
_TRIAL_NOTES: Mapping[str, type] = {
    **dict.fromkeys(("numbers", "added", "removed"), list),
    "starred": bool,
    "note": str,
}
"""Fields of an annotation of trials: the arguments of `trial_notes.write`, and their types."""
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""A NUL, or half of a pair of surrogates: no database stores them."""
_SECONDS = (int, float, NoneType)
_TOKEN: Mapping[str, tuple[type, ...]] = {"role": (str,), "digest": (str,), "seconds": _SECONDS}
_LOOK: Mapping[str, tuple[type, ...]] = {"command": (str,), "version": (str,), "results": (int,)}
_REVEAL: Mapping[str, tuple[type, ...]] = {"person": (str,), "version": (str,)}
_Record = TypeVar("_Record")
REVOCATION = "-revocation"
"""The end of the names of requests that revoke a token, so that they are found unopened."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms on which the service runs a study; StudyError names a bad value and its rule."""

    owner: str = ""
    """The person whose study it is."""
    priority: int = 0
    """The study's class, -100 to 100: higher classes get lanes before lower ones."""
    weight: float = 1.0
    """Above 0, at most 1000: studies of a class share its lanes in proportion to their weights."""
    max_lanes: int | None = None
    """Most lanes that the study may have at once; None: any number."""

    def __post_init__(self) -> None:
        check_priority(self.priority)
        if not self.owner.isprintable() or len(self.owner) > LONGEST_OWNER:
            rule = f"must be a name of at most {LONGEST_OWNER} characters"
            raise StudyError(f"owner {shorten(repr(self.owner))} {rule}")
        if not (math.isfinite(self.weight) and 0 < self.weight <= LARGEST_WEIGHT):
            raise StudyError(f"weight {self.weight} must be above 0 and at most {LARGEST_WEIGHT:g}")
        if self.max_lanes is not None and not 1 <= self.max_lanes <= MOST_LANES:
            raise StudyError(f"max_lanes {self.max_lanes:g} must be from 1 to {MOST_LANES:,}")


def check_priority(priority: int) -> None:
    """Raise StudyError unless the number is a priority class, -100 to 100."""
    if priority not in PRIORITIES:
        rule = f"must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}"
        raise StudyError(f"priority {priority} {rule}")


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """A request, to the queue or for a record, that can be sent to the process that writes."""

    action: Action
    study: str
    """The study's name; in `make_token` and `revoke_token` the token's name, as in JSON."""
    terms: Terms = field(default_factory=Terms)
    """The terms of a submission; of a `reprioritise` request only the priority counts."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The study of a submission, as `new_study.row_of` returns it; some of a study's `note`, `tags`
    and `archived`, or the arguments of `trial_notes.write`, of an annotation; else the arguments of
    the function that `Store.carry_out` calls."""
    bundles: tuple[Bundle, ...] = ()
    by: str | None = None
    """The token on whose behalf the request is made, which may change only its own entries. None: a
    person who may change every entry, as anyone who can write the database's file may."""
    most_open: int | None = None
    """Most studies of the owner in the queue at once; None, or without `by`: any number."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """An id by which a request that is sent again differs from a new one."""

    @classmethod
    def of_study(cls, study: NewStudy, terms: Terms) -> StoreRequest:
        """Return the request that submits a study."""
        row, bundles = row_of(study), study.bundles
        return cls(action="submit", study=study.name, terms=terms, row=row, bundles=bundles)

    def check(self) -> None:
        """Raise MessageError for a bad row, or a value that no table takes: it ends the writer."""
        for value in _list_values(asdict(self)):
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                problem = f"{shorten(str(value), 40)} is too large a number"
                raise MessageError(f"{self.action} {self.study!r}: {problem}")
            if isinstance(value, str) and (fault := _NO_CHARACTER.search(value)):
                raise MessageError(f"{self.action}: a text holds {fault.group()!r}, no character")
        if self.action not in get_args(Action) or not self._has_valid_row():
            asked = f"it asks for {shorten(repr(self.action))}"
            raise MessageError(f"a request to the queue cannot be read: {asked}")

    def _has_valid_row(self) -> bool:
        """Return True if the row has its action's fields, with values of their types and ranges."""
        if self.action == "annotate":
            kinds = _TRIAL_NOTES if "numbers" in self.row else _ANNOTATIONS
            right = [type(value) is kinds.get(name) for name, value in self.row.items()]
            if not right or not all(right):
                return False
            tags = [tag for name in ("tags", "added", "removed") for tag in self.row.get(name, [])]
            numbers = self.row.get("numbers", [])
            return {type(tag) for tag in tags} <= {str} and {type(number) for number in numbers} <= {int}
        columns = {"submit": _COLUMNS, "look": _LOOK, "reveal": _REVEAL, "make_token": _TOKEN}.get(self.action, {})
        if self.row.keys() != columns.keys():
            return False
        if not all(type(value) in columns[name] for name, value in self.row.items()):
            return False
        if self.action != "submit":
            return True
        row = self.row
        return (
            (row["name"], row["state"]) == (self.study, "stopped")
            and row["direction"] in ("minimize", "maximize")
            and 0 <= row["trials"] <= MOST_TRIALS
            and row["seed"] >= 0
            and 0 <= row["numerics"] <= LARGEST_SIZE
        )

    def to_json(self) -> str:
        """Return the request as text; raises MessageError as `check` does."""
        self.check()
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StoreRequest:
        """Return the request of a text; raises MessageError for a text that is no request."""
        try:
            values = json.loads(text)
            if not all(isinstance(values[name], str) for name in ("study", "id")):
                raise TypeError(f"study {shorten(repr(values['study']))} and its id must be texts")
            by, most_open = values.get("by"), values.get("most_open")  # older versions did not write them
            if not isinstance(by, str | None) or not isinstance(most_open, int | None):
                raise TypeError(f"by {shorten(repr(by))} must be a text, most_open a whole number")
            bundles = [
                Bundle(
                    sources=tuple(_read_record(Source, source) for source in bundle["sources"]),
                    members=tuple(_read_record(Member, member) for member in bundle["members"]),
                    is_installed=bool(bundle["is_installed"]),
                )
                for bundle in values["bundles"]
            ]
            request = cls(
                action=values["action"],
                study=values["study"],
                terms=_read_record(Terms, values["terms"]),
                row=dict(values["row"]),
                bundles=tuple(bundles),
                by=by,
                most_open=most_open,
                id=values["id"],
            )
            request.check()
        except MessageError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StudyError) as error:
            fault = shorten(repr(error), 300)
            raise MessageError(f"a request to the queue cannot be read: {fault}") from None
        return request


def _list_values(value: Any) -> Iterator[Any]:
    """Yield all plain values of a request, the keys of its mappings included."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _list_values(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _list_values(inner)
    else:
        yield value


def _read_record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Return a record from JSON values; TypeError for a wrong type, KeyError for a wrong name."""
    for name, hint in ((name, get_type_hints(kind)[name]) for name in values):
        is_stray_bool = isinstance(values[name], bool) and hint is not bool  # to Python, True is an int
        if is_stray_bool or not isinstance(values[name], int | float if hint is float else hint):
            raise TypeError(f"{name} {shorten(repr(values[name]))} must be of type {hint}")
    return kind(**values)
