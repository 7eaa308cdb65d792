"""The queue of the service: which studies it is to run, for whom, in which order.

An entry is one row of `submissions`, of a study that exists. People submit, pause, resume, cancel and reprioritise by
requests, each one transaction; the service notes what it does. A request may be made twice, because an answer was lost:
the second time changes nothing.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any, Literal, TypeVar, final, get_args, get_type_hints

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from spaces.bounds import (
    LARGEST_INTEGER,
    LARGEST_SIZE,
    LARGEST_WEIGHT,
    LONGEST_OWNER,
    MOST_LANES,
    MOST_TRIALS,
    PRIORITIES,
)
from spaces.errors import AccessError, MessageError, StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle, Member, Source
from storage import claim_events, tokens
from storage.claims.session import Session
from storage.databases.database import QUEUE_TOPIC
from storage.new_study import NewStudy, check_name, insert_study, row_of
from storage.queue_entries import OPEN, QueueEntry, QueueState, StrangeEntry, read_entries, read_sound_entries
from storage.schema import Now, studies, submissions

Action = Literal[
    "submit", "pause", "resume", "cancel", "reprioritise", "annotate", "look", "reveal", "make_token", "revoke_token"
]
"""The last five change nothing in the queue: `annotate` writes a note, tags or the archive's mark of a study, or stars,
tags and notes of its trials; `look` records that interim results of a study with a claim were shown, `reveal` that its
test sets are opened."""
_FROM: Mapping[Action, tuple[QueueState, ...]] = {
    "pause": ("waiting", "running", "paused"),
    "resume": ("paused", "cancelled", "failed", "waiting", "running"),
    "cancel": ("waiting", "running", "paused", "cancelled"),
    "reprioritise": ("waiting", "running", "paused"),
}
"""The states in which each request makes sense, those that it leads to included."""
_COLUMNS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "space", "space_hash", "objective", "direction", "version", "state"), (str,)),
    **dict.fromkeys(("seed", "trials", "numerics"), (int,)),
    "second_objective": (str, NoneType),
    "stop_requested": (bool,),
    "data": (dict,),
}
"""What a submission says of its study."""
_ANNOTATIONS: Mapping[str, type] = {"note": str, "tags": list, "archived": bool}
_OF_TRIALS: Mapping[str, type] = {"numbers": list, "starred": bool, "added": list, "removed": list, "note": str}
"""Fields of an annotation of trials: the arguments of `trial_notes.write`, and their types."""
_TOKEN: Mapping[str, tuple[type, ...]] = {"role": (str,), "digest": (str,), "seconds": (int, float, NoneType)}
_LOOK: Mapping[str, tuple[type, ...]] = {"command": (str,), "version": (str,), "results": (int,)}
_REVEAL: Mapping[str, tuple[type, ...]] = {"person": (str,), "version": (str,)}
_Record = TypeVar("_Record")
NEEDS_ADMIN = "to change it needs the role admin"
REVOCATION = "-revocation"
"""Ends the names of messages that revoke a token, so that they are found without reading the others."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which terms a study is run; raises StudyError that names the value and the rule."""

    owner: str = ""
    """The person whose study it is."""
    priority: int = 0
    """Its class, -100 to 100: studies of a higher class have lanes before those of a lower one."""
    weight: float = 1.0
    """Its share among the studies of its class, above 0 and at most 1000."""
    max_lanes: int | None = None
    """Lanes that it may have at once; None: any number."""

    def __post_init__(self) -> None:
        check_priority(self.priority)
        if not self.owner.isprintable() or len(self.owner) > LONGEST_OWNER:
            raise StudyError(f"owner {shorten(repr(self.owner))} must be a name of at most {LONGEST_OWNER} characters")
        if not (math.isfinite(self.weight) and 0 < self.weight <= LARGEST_WEIGHT):
            raise StudyError(f"weight {self.weight} must be above 0 and at most {LARGEST_WEIGHT:g}")
        if self.max_lanes is not None and not 1 <= self.max_lanes <= MOST_LANES:
            raise StudyError(f"max_lanes {self.max_lanes:g} must be from 1 to {MOST_LANES:,}")


def check_priority(priority: int) -> None:
    """Raise StudyError unless it is a priority class."""
    if priority not in PRIORITIES:
        raise StudyError(f"priority {priority} must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}")


@dataclass(frozen=True, kw_only=True)
class QueueRequest:
    """What a person asks of the queue, in a form that can be sent to the process that writes the database."""

    action: Action
    study: str
    """Its name; of a request about a token the token's."""
    terms: Terms = field(default_factory=Terms)
    """Of a submission; a reprioritisation has its priority here."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The study of a submission, as `new_study.row_of` gives it; or the changes of an annotation: some of a study's
    `note`, `tags` and `archived`, or the arguments of `trial_notes.write`."""
    bundles: tuple[Bundle, ...] = ()
    by: str | None = None
    """The token on whose behalf it is made, which may change only the entries of the owner of that name; None: a person
    who may change all, as one who can write the database's file may anyway."""
    most_open: int | None = None
    """Studies that the owner may have in the queue at once, if that is asked `by` somebody."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of_study(cls, study: NewStudy, terms: Terms) -> QueueRequest:
        """Return a submission."""
        return cls(action="submit", study=study.name, terms=terms, row=row_of(study), bundles=study.bundles)

    def check(self) -> None:
        """Raise MessageError for a value that no table takes: it would end the process that writes it."""
        for value in _list_values(asdict(self)):
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                raise MessageError(f"{self.action} {self.study!r}: {shorten(str(value), 40)} is too large a number")
            if isinstance(value, str) and (fault := _find_bad_character(value)):
                raise MessageError(f"{self.action}: a text holds {fault!r}, no character")
        if self.action not in get_args(Action) or not self._is_whole():
            raise MessageError(f"a request to the queue cannot be read: it asks for {shorten(repr(self.action))}")

    def _is_whole(self) -> bool:
        """Return whether its row has what its action needs, of the right types and in range, and nothing else."""
        if self.action == "annotate":
            kinds = _OF_TRIALS if "numbers" in self.row else _ANNOTATIONS
            if not self.row or not all(type(value) is kinds.get(name) for name, value in self.row.items()):
                return False
            tags = [tag for name in ("tags", "added", "removed") for tag in self.row.get(name, [])]
            numbers = self.row.get("numbers", [])
            return all(type(tag) is str for tag in tags) and all(type(number) is int for number in numbers)
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
        """As text; raises MessageError as `check` does."""
        self.check()
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> QueueRequest:
        """From its text; raises MessageError for a text that is no request."""
        try:
            values = json.loads(text)
            if not all(isinstance(values[name], str) for name in ("study", "id")):
                raise TypeError(f"study {shorten(repr(values['study']))} and its id must be texts")
            by, most_open = values.get("by"), values.get("most_open")  # older versions did not say
            if not isinstance(by, str | None) or not isinstance(most_open, int | None):
                raise TypeError(f"by {shorten(repr(by))} must be a text, most_open a whole number")
            bundles = [
                Bundle(
                    sources=tuple(_read_record(Source, source) for source in one["sources"]),
                    members=tuple(_read_record(Member, member) for member in one["members"]),
                    is_installed=bool(one["is_installed"]),
                )
                for one in values["bundles"]
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
            raise MessageError(f"a request to the queue cannot be read: {shorten(repr(error), 300)}") from None
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


def _find_bad_character(text: str) -> str | None:
    """Return the first character that no database takes: half of a pair, as a byte that was no UTF-8 leaves it, or
    NUL.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return "\0" if "\0" in text else None


def _read_record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Return a record from its JSON; raises TypeError for a value of another type, KeyError for one of another name."""
    for name, hint in ((name, get_type_hints(kind)[name]) for name in values):
        is_number = isinstance(values[name], bool) and hint is not bool  # Python counts True as 1
        if is_number or not isinstance(values[name], int | float if hint is float else hint):
            raise TypeError(f"{name} {shorten(repr(values[name]))} must be of type {hint}")
    return kind(**values)


class _OtherSpaceError(StudyError):
    """A submission names a study that has another space."""

    def __init__(self, study_id: int, study: str) -> None:
        super().__init__(
            f"study {study!r} exists already with another space; submit this one under another name (--name)"
        )
        self.study_id = study_id


@final
class Queue:
    """The queue of a database, over a writing connection. Safe to call from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def submit(self, study: NewStudy, terms: Terms) -> QueueEntry:
        """Queue a study, which is written if there is none of its name; the entry.

        A study of this name and space that ended, was cancelled or never was in the queue goes on; one that is in the
        queue now stays as it is, also where the terms are other ones. Raises StudyError for a study that has another
        space, or is in the queue for another owner.
        """
        return self.apply(QueueRequest.of_study(study, terms))

    def pause(self, study: str) -> QueueEntry:
        """Have the study stopped, with everything kept, until it is resumed; raises StudyError if it has ended."""
        return self.apply(QueueRequest(action="pause", study=study))

    def resume(self, study: str) -> QueueEntry:
        """Queue a study again that was paused or cancelled, or failed."""
        return self.apply(QueueRequest(action="resume", study=study))

    def cancel(self, study: str) -> QueueEntry:
        """Have the study stopped and taken out of the queue; what it has found stays in the database."""
        return self.apply(QueueRequest(action="cancel", study=study))

    def reprioritise(self, study: str, priority: int) -> QueueEntry:
        """Give the study another priority class; raises StudyError if it has ended."""
        return self.apply(QueueRequest(action="reprioritise", study=study, terms=Terms(priority=priority)))

    def entries(self) -> list[QueueEntry]:
        """Return all entries, those that have ended included: as `read_entries`."""
        return self._session.transact(read_entries)

    def sound_entries(self) -> tuple[list[QueueEntry], list[StrangeEntry]]:
        """As `read_sound_entries`."""
        return self._session.transact(read_sound_entries)

    def apply(self, request: QueueRequest) -> QueueEntry:
        """Do what is asked, in one transaction; the study's entry now.

        Raises StudyError for what cannot be done, AccessError for the study of another person.
        """
        request.check()

        def act(connection: Connection) -> QueueEntry:
            _check_role(connection, request)
            if request.action == "submit":
                _submit(connection, request)
            else:
                _change(connection, request)
            self._session.database.ring(connection, QUEUE_TOPIC)
            sound, strange = read_sound_entries(connection, request.study)
            if strange:
                raise StudyError(f"study {request.study!r}: {strange[0].fault}")
            return sound[0]

        try:
            return self._session.transact(act)
        except _OtherSpaceError as refusal:
            values = {"change": "another space", "version": request.row["version"]}
            study_id = refusal.study_id
            self._session.transact(lambda connection: claim_events.record_refusal(connection, study_id, **values))
            raise
        except IntegrityError:  # another process has submitted the same study since this one looked; now it is found
            return self._session.transact(act)

    def check_holder(self, request: QueueRequest) -> None:
        """Raise AccessError for a request about a study that is made by somebody who may not change it."""
        request.check()

        def check(connection: Connection) -> None:
            _check_role(connection, request)
            these = select(submissions.c.owner).join(studies, studies.c.id == submissions.c.study_id)
            _check_owner(request, connection.scalar(these.where(studies.c.name == request.study)))

        self._session.transact(check)

    # ------------------------------------------------------------------------------------- what the service notes

    def note_start(self, study_id: int) -> None:
        """Record that the service runs a study that waited."""
        self._note(study_id, ("waiting", "running"), state="running", reason="", started_at=Now())

    def note_end(self, study_id: int, state: QueueState, reason: str = "") -> None:
        """Record that the service has ended a study that it ran; one paused or cancelled meanwhile stays so."""
        self._note(study_id, ("waiting", "running"), state=state, reason=reason, ended_at=Now())
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_rest(self, study_id: int) -> None:
        """Record that the service stopped running a study, which waits again unless it was paused or cancelled."""
        self._note(study_id, ("running",), state="waiting", reason="")
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_lanes(self, study_id: int, *, lanes: int, share: float, reason: str) -> None:
        """How many lanes train for a study, how many it is due, and why it waits or has fewer than it asks for."""
        self._note(study_id, ("waiting", "running"), lanes=lanes, share=share, reason=reason)

    def _note(self, study_id: int, states: tuple[QueueState, ...], **values: Any) -> None:
        this = update(submissions).where(submissions.c.study_id == study_id, submissions.c.state.in_(states))
        self._session.transact(lambda connection: connection.execute(this.values(values)))


def _check_role(connection: Connection, request: QueueRequest) -> None:
    """Raise AccessError if the token on whose behalf the request is made may not submit now."""
    if request.by is None:
        return
    role = tokens.find_role(connection, request.by)
    if role is None:
        raise AccessError(f"the token {request.by!r} was revoked, or has expired")
    if role == "read":
        raise AccessError(f"the token {request.by!r} has the role read; this needs submit")


def _submit(connection: Connection, request: QueueRequest) -> None:
    check_name(request.study)
    c = submissions.c
    known = connection.execute(
        select(studies.c.id, studies.c.space_hash, c.request, c.state, c.owner)
        .select_from(studies.outerjoin(submissions, c.study_id == studies.c.id))
        .where(studies.c.name == request.study)
    ).one_or_none()
    if known:
        _check_owner(request, known.owner)
    if known and known.request == request.id:  # made before, by a call whose answer was lost
        return
    if known and known.space_hash != request.row["space_hash"]:
        raise _OtherSpaceError(known.id, request.study)
    if known and known.state in OPEN:  # submitting is idempotent: the entry stays as it is
        if known.owner != request.terms.owner:
            whose = known.owner or "nobody"
            raise StudyError(
                f"study {request.study!r} is in the queue already ({known.state}), of {whose}; submit another name"
            )
        return
    _check_room(connection, request, request.terms.owner)
    study_id = known.id if known else insert_study(connection, request.row, request.bundles)
    entry = {
        **asdict(request.terms),
        "request": request.id,
        "state": "waiting",
        "reason": "",
        "lanes": 0,
        "share": 0.0,
        "submitted_at": Now(),
        "started_at": None,
        "ended_at": None,
    }
    if known and known.state:
        # The entry that was looked at above: on a server another person may have submitted the study in between.
        same = update(submissions).where(c.study_id == study_id, c.request == known.request)
        if not connection.execute(same.values(entry)).rowcount:
            _submit(connection, request)
    else:
        connection.execute(insert(submissions).values(study_id=study_id, **entry))


def _check_owner(request: QueueRequest, owner: str | None) -> None:
    """Raise AccessError if the study is not that of the person who asks; `owner`: None for one that was launched."""
    if request.by is None or owner == request.by:
        return
    whose = f"is {owner or 'nobody'}'s" if owner is not None else "was launched, not submitted"
    raise AccessError(f"study {request.study} {whose}; {NEEDS_ADMIN}")


def _check_room(connection: Connection, request: QueueRequest, owner: str) -> None:
    """Raise StudyError if the owner has as many studies in the queue as a person may have."""
    if request.by is None or request.most_open is None:
        return
    c = submissions.c
    these = select(func.count()).select_from(submissions).where(c.owner == owner, c.state.in_(OPEN))
    if (count := connection.execute(these).scalar_one()) >= request.most_open:
        raise StudyError(f"{owner} has {count} studies in the queue, as many as a person may have here; cancel one")


def _change(connection: Connection, request: QueueRequest) -> None:
    c = submissions.c
    these = (
        select(c.study_id, c.state, c.owner)
        .join(studies, studies.c.id == c.study_id)
        .where(studies.c.name == request.study)
    )
    known = connection.execute(these.with_for_update(of=submissions)).one_or_none()
    if known is None:
        names = connection.scalars(select(studies.c.name).join(submissions).where(c.state.in_(OPEN)))
        choices = shorten(", ".join(names))
        raise StudyError(
            f"study {request.study!r} is not in the queue; {f'there are {choices}' if choices else 'it is empty'}"
        )
    _check_owner(request, known.owner)
    if known.state not in _FROM[request.action]:
        raise StudyError(f"study {request.study!r} is {known.state}: there is nothing to {request.action}")
    this = update(submissions).where(c.study_id == known.study_id)
    if request.action == "reprioritise":
        connection.execute(this.values(priority=request.terms.priority))
    elif request.action != "resume":
        state = "paused" if request.action == "pause" else "cancelled"
        connection.execute(this.values(state=state, reason=""))
    elif known.state not in ("waiting", "running"):
        if known.state not in OPEN:
            _check_room(connection, request, known.owner)
        connection.execute(this.values(state="waiting", reason="", ended_at=None))
