"""The queue of the service: the studies that it runs, for whom and in which order.

The queue of a study's trials is `search.steering.trial_queue`. An entry is a row of `submissions`
and belongs to a study that exists. People submit, pause, resume, cancel and reprioritise studies by
requests, each done in one transaction; the service notes what it starts and ends. A request may be
repeated at once, if an answer was lost: the second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, final, get_args

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import AccessError, StudyError
from spaces.messages import shorten
from storage import claim_events, tokens
from storage.clock import Now
from storage.control.session import Session
from storage.databases.database import QUEUE_TOPIC
from storage.new_study import check_name, insert_study
from storage.queue_entries import OPEN, QueueEntry, QueueState, StrangeEntry, read_open_entries, read_sound_entries
from storage.schema import studies, submissions
from storage.store_request import Action, StoreRequest

_ALLOWED_IN: Mapping[Action, tuple[QueueState, ...]] = {
    "pause": ("waiting", "running", "paused"),
    "resume": ("paused", "cancelled", "failed", "waiting", "running"),
    "cancel": ("waiting", "running", "paused", "cancelled"),
    "reprioritise": ("waiting", "running", "paused"),
}
"""Request -> states in which it is allowed. Its own result is one, so that it may be repeated."""
NEEDS_ADMIN = "to change it needs the role admin"
"""The end of the message that refuses another person's study; `graft.web.callers` knows it by this."""


class _OtherSpaceError(StudyError):
    """The error of a submission whose study exists with another space."""

    def __init__(self, study_id: int, study: str) -> None:
        problem = f"study {study!r} exists already with another space"
        super().__init__(f"{problem}; submit this one under another name (--name)")
        self.study_id = study_id


@final
class Queue:
    """The queue of a database, over a writing connection. Safe to call from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def sound_entries(self) -> tuple[list[QueueEntry], list[StrangeEntry]]:
        """Return the sound entries and the hand-edited ones, as `read_sound_entries` does."""
        return self._session.transact(read_sound_entries)

    def open_entries(self, others: Collection[int]) -> tuple[list[QueueEntry], list[StrangeEntry]]:
        """Return the entries that are open or of the studies `others`, as `read_open_entries` does."""
        return self._session.transact(lambda connection: read_open_entries(connection, others))

    def apply(self, request: StoreRequest) -> QueueEntry:
        """Carry out a request in one transaction and return the study's entry after it.

        A submission creates the study if there is none of its name. A study of this name and space
        that ended or was cancelled is queued to resume, and without a token one that never was in the
        queue. An entry that is in the queue now stays as it is, even if other terms than the owner
        differ. Raises StudyError for a request that cannot be carried out, such as the submission of
        another space or of a study that is in the queue for another owner, and for a row that was
        edited by hand; AccessError for the study of another person, and for a token that was revoked,
        has expired or may only read. `Store.carry_out` has checked the request.
        """

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
            try:
                return self._session.transact(act)
            except IntegrityError:  # another process submitted the study: the second try finds it
                return self._session.transact(act)
        except _OtherSpaceError as refusal:  # of a study with claims a record is kept
            values = {"change": "another space", "version": request.row["version"]}
            record, study_id = claim_events.record_refusal, refusal.study_id
            self._session.transact(lambda connection: record(connection, study_id, **values))
            raise

    def check_may_change(self, request: StoreRequest) -> None:
        """Raise AccessError if the token of a request (`by`) may not change the request's study.

        A study that does not exist is for the change itself to refuse.
        """

        def check(connection: Connection) -> None:
            _check_role(connection, request)
            known = studies.outerjoin(submissions, studies.c.id == submissions.c.study_id)
            owners = select(submissions.c.owner).select_from(known).where(studies.c.name == request.study)
            if row := connection.execute(owners).one_or_none():
                _check_owner(request, row.owner)

        self._session.transact(check)

    # -- records of the service ------------------------------------------------------------------

    def note_start(self, study_id: int) -> None:
        """Record that the service has begun to run a study."""
        self._note(study_id, ("waiting", "running"), state="running", reason="", started_at=Now())

    def note_end(self, study_id: int, state: QueueState, reason: str = "") -> None:
        """Record that the service ended a study; one paused or cancelled meanwhile stays so."""
        self._note(study_id, ("waiting", "running"), state=state, reason=reason, ended_at=Now())
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_stop(self, study_id: int) -> None:
        """Record that a study was stopped; it waits again unless paused, cancelled or ended."""
        self._note(study_id, ("running",), state="waiting", reason="")
        self._note(study_id, get_args(QueueState), lanes=0, share=0.0)

    def note_lanes(self, study_id: int, *, lanes: int, share: float, reason: str) -> None:
        """Record a study's lanes, its share of them, and why it waits or has fewer than it asks."""
        self._note(study_id, ("waiting", "running"), lanes=lanes, share=share, reason=reason)

    def _note(self, study_id: int, states: tuple[QueueState, ...], **values: Any) -> None:
        """Write values to a study's entry if its state is one of `states`."""
        c = submissions.c
        write = update(submissions).where(c.study_id == study_id, c.state.in_(states))
        self._session.transact(lambda connection: connection.execute(write.values(values)))


def _check_role(connection: Connection, request: StoreRequest) -> None:
    """Raise AccessError if the request's token was revoked, has expired, or may only read."""
    if request.by is None:
        return
    role = tokens.find_role(connection, request.by)
    if role is None:
        raise AccessError(f"the token {request.by!r} was revoked, or has expired")
    if role == "read":
        raise AccessError(f"the token {request.by!r} has the role read; this needs submit")


def _submit(connection: Connection, request: StoreRequest) -> None:
    """Write a submission's entry, and its study if new; do nothing if the queue has it for the same owner."""
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
            problem = f"is in the queue already ({known.state}), of {whose}"
            raise StudyError(f"study {request.study!r} {problem}; submit another name")
        return
    _check_quota(connection, request, request.terms.owner)
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
        # Only the entry read above: another person may have submitted the study meanwhile.
        statement = update(submissions).where(c.study_id == study_id, c.request == known.request)
        if not connection.execute(statement.values(entry)).rowcount:
            _submit(connection, request)
    else:
        connection.execute(insert(submissions).values(study_id=study_id, **entry))


def _check_owner(request: StoreRequest, owner: str | None) -> None:
    """Raise AccessError if the study is another person's; `owner` None: a launch made it."""
    if request.by is None or owner == request.by:
        return
    whose = f"is {owner or 'nobody'}'s" if owner is not None else "was launched, not submitted"
    raise AccessError(f"study {request.study!r} {whose}; {NEEDS_ADMIN}")


def _check_quota(connection: Connection, request: StoreRequest, owner: str) -> None:
    """Raise StudyError if the owner has `most_open` studies in the queue already."""
    if request.by is None or request.most_open is None:
        return
    c = submissions.c
    query = select(func.count()).select_from(submissions).where(c.owner == owner, c.state.in_(OPEN))
    if (count := connection.execute(query).scalar_one()) >= request.most_open:
        most = f"{owner} has {count} studies in the queue, as many as a person may have here"
        raise StudyError(f"{most}; cancel one")


def _change(connection: Connection, request: StoreRequest) -> None:
    """Pause, resume, cancel or reprioritise the entry of the request's study."""
    c = submissions.c
    query = (
        select(c.study_id, c.state, c.owner)
        .join(studies, studies.c.id == c.study_id)
        .where(studies.c.name == request.study)
    )
    known = connection.execute(query.with_for_update(of=submissions)).one_or_none()
    if known is None:
        names = select(studies.c.name).join(submissions).where(c.state.in_(OPEN))
        choices = shorten(", ".join(connection.scalars(names)))
        there = f"there are {choices}" if choices else "it is empty"
        raise StudyError(f"study {request.study!r} is not in the queue; {there}")
    _check_owner(request, known.owner)
    if known.state not in _ALLOWED_IN[request.action]:
        state = f"study {request.study!r} is {known.state}"
        raise StudyError(f"{state}: there is nothing to {request.action}")
    statement = update(submissions).where(c.study_id == known.study_id)
    if request.action == "reprioritise":
        connection.execute(statement.values(priority=request.terms.priority))
    elif request.action != "resume":
        state = "paused" if request.action == "pause" else "cancelled"
        connection.execute(statement.values(state=state, reason=""))
    elif known.state not in ("waiting", "running"):
        if known.state not in OPEN:
            _check_quota(connection, request, known.owner)
        connection.execute(statement.values(state="waiting", reason="", ended_at=None))
