"""The queue of the service: which studies it is to run, for whom, in which order.

An entry is one row of `submissions`, of a study that exists. People submit, pause, resume, cancel and reprioritise by
requests, each one transaction; the service notes what it does. A request may be made twice, because an answer was lost:
the second time changes nothing.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any, Literal, TypeVar, final, get_args, get_type_hints

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle, Member, Source
from storage.claims.session import Session
from storage.databases.database import QUEUE_TOPIC
from storage.new_study import NewStudy, check_name, insert_study, row_of
from storage.queue_entries import OPEN, QueueEntry, QueueState, StrangeEntry, read_entries, read_sound_entries
from storage.schema import Now, studies, submissions

Action = Literal["submit", "pause", "resume", "cancel", "reprioritise", "annotate"]
"""`annotate` is none of the queue: it writes a note, tags or the mark of the archive of any study."""
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
_Record = TypeVar("_Record")
PRIORITIES = range(-100, 101)
LARGEST_WEIGHT = 1000.0
_LONGEST_OWNER = 100


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
        if not self.owner.isprintable() or len(self.owner) > _LONGEST_OWNER:
            raise StudyError(f"owner {shorten(repr(self.owner))} must be a name of at most {_LONGEST_OWNER} characters")
        if not (math.isfinite(self.weight) and 0 < self.weight <= LARGEST_WEIGHT):
            raise StudyError(f"weight {self.weight} must be above 0 and at most {LARGEST_WEIGHT:g}")
        if self.max_lanes is not None and self.max_lanes < 1:
            raise StudyError(f"max_lanes {self.max_lanes} must be at least 1")


def check_priority(priority: int) -> None:
    """Raise StudyError unless it is a priority class."""
    if priority not in PRIORITIES:
        raise StudyError(f"priority {priority} must be a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}")


@dataclass(frozen=True, kw_only=True)
class QueueRequest:
    """What a person asks of the queue, in a form that can be sent to the process that writes the database."""

    action: Action
    study: str
    terms: Terms = field(default_factory=Terms)
    """Of a submission; a reprioritisation has its priority here."""
    row: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of a submission: the study, as `new_study.row_of` gives it; of an annotation: some of note, tags, archived."""
    bundles: tuple[Bundle, ...] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of_study(cls, study: NewStudy, terms: Terms) -> QueueRequest:
        """A submission."""
        return cls(action="submit", study=study.name, terms=terms, row=row_of(study), bundles=study.bundles)

    @property
    def is_whole(self) -> bool:
        """Whether its row has what its action needs, of the right types, and nothing else."""
        if self.action == "annotate":
            return bool(self.row) and all(type(value) is _ANNOTATIONS.get(name) for name, value in self.row.items())
        if self.action != "submit":
            return not self.row
        if self.row.keys() != _COLUMNS.keys() or self.row["name"] != self.study:
            return False
        return all(type(value) in _COLUMNS[name] for name, value in self.row.items())

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> QueueRequest:
        """From its text; raises StudyError for what is none."""
        try:
            values = json.loads(text)
            if not all(isinstance(values[name], str) for name in ("study", "id")):
                raise TypeError(f"study {shorten(repr(values['study']))} and its id must be texts")
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
                id=values["id"],
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StudyError(f"a request to the queue cannot be read: {error!r}") from None
        if request.action not in get_args(Action) or not request.is_whole:
            raise StudyError(f"a request to the queue cannot be read: it asks for {shorten(repr(request.action))}")
        return request


def _read_record(kind: type[_Record], values: Mapping[str, Any]) -> _Record:
    """A record from its JSON; raises TypeError for a value of another type, KeyError for one of another name."""
    for name, hint in ((name, get_type_hints(kind)[name]) for name in values):
        if not isinstance(values[name], int | float if hint is float else hint):
            raise TypeError(f"{name} {shorten(repr(values[name]))} must be of type {hint}")
    return kind(**values)


@final
class Queue:
    """The queue of a database, over a writing connection. Safe to call from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def submit(self, study: NewStudy, terms: Terms) -> QueueEntry:
        """Queue a study, which is written if there is none of its name; the entry.

        A study of this name and space that ended, was cancelled or never was in the queue goes on. Raises StudyError if
        it is in the queue now, or has another space.
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
        """All entries, those that have ended included: as `read_entries`."""
        return self._session.transact(read_entries)

    def sound_entries(self) -> tuple[list[QueueEntry], list[StrangeEntry]]:
        """As `read_sound_entries`."""
        return self._session.transact(read_sound_entries)

    def apply(self, request: QueueRequest) -> QueueEntry:
        """Do what is asked, in one transaction; the study's entry now. Raises StudyError for what cannot be done."""

        def act(connection: Connection) -> QueueEntry:
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
        except IntegrityError:  # another process has submitted the same study since this one looked; now it is found
            return self._session.transact(act)

    # ------------------------------------------------------------------------------------- what the service notes

    def note_start(self, study_id: int) -> None:
        """The service runs a study that waited."""
        self._note(study_id, ("waiting", "running"), state="running", reason="", started_at=Now())

    def note_end(self, study_id: int, state: QueueState, reason: str = "") -> None:
        """The service has ended a study that it ran; one that was paused or cancelled meanwhile stays so."""
        self._note(study_id, ("waiting", "running"), state=state, reason=reason, ended_at=Now())
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_rest(self, study_id: int) -> None:
        """The service runs a study no more that it stopped: unless it was paused or cancelled, it waits."""
        self._note(study_id, ("running",), state="waiting", reason="")
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_lanes(self, study_id: int, *, lanes: int, share: float, reason: str) -> None:
        """How many lanes train for a study, how many it is due, and why it waits or has fewer than it asks for."""
        self._note(study_id, ("waiting", "running"), lanes=lanes, share=share, reason=reason)

    def _note(self, study_id: int, states: tuple[QueueState, ...], **values: Any) -> None:
        this = update(submissions).where(submissions.c.study_id == study_id, submissions.c.state.in_(states))
        self._session.transact(lambda connection: connection.execute(this.values(values)))


def _submit(connection: Connection, request: QueueRequest) -> None:
    check_name(request.study)
    known = connection.execute(
        select(studies.c.id, studies.c.space_hash, submissions.c.request, submissions.c.state)
        .select_from(studies.outerjoin(submissions, submissions.c.study_id == studies.c.id))
        .where(studies.c.name == request.study)
    ).one_or_none()
    if known and known.request == request.id:  # made before, by a call whose answer was lost
        return
    if known and known.state in OPEN:
        raise StudyError(f"study {request.study!r} is in the queue already ({known.state}); submit another name")
    if known and known.space_hash != request.row["space_hash"]:
        raise StudyError(
            f"study {request.study!r} exists already with another space; submit this one under another name (--name)"
        )
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
        connection.execute(update(submissions).where(submissions.c.study_id == study_id).values(entry))
    else:
        connection.execute(insert(submissions).values(study_id=study_id, **entry))


def _change(connection: Connection, request: QueueRequest) -> None:
    c = submissions.c
    these = select(c.study_id, c.state).join(studies, studies.c.id == c.study_id).where(studies.c.name == request.study)
    known = connection.execute(these.with_for_update(of=submissions)).one_or_none()
    if known is None:
        names = connection.scalars(select(studies.c.name).join(submissions).where(c.state.in_(OPEN)))
        choices = shorten(", ".join(names))
        raise StudyError(
            f"study {request.study!r} is not in the queue; {f'there are {choices}' if choices else 'it is empty'}"
        )
    if known.state not in _FROM[request.action]:
        raise StudyError(f"study {request.study!r} is {known.state}: there is nothing to {request.action}")
    this = update(submissions).where(c.study_id == known.study_id)
    if request.action == "reprioritise":
        connection.execute(this.values(priority=request.terms.priority))
    elif request.action != "resume":
        state = "paused" if request.action == "pause" else "cancelled"
        connection.execute(this.values(state=state, reason=""))
    elif known.state not in ("waiting", "running"):
        connection.execute(this.values(state="waiting", reason="", ended_at=None))
