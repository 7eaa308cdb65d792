"""The queue of the service: what waits and runs, and what people ask of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from graft.web.models import Accepted, Priority, QueueState, Submission
from graft.web.reading import OpenReader, OpenStudy, StudyName, settings_of
from graft.web.security.access import LOCAL, Holder
from graft.web.security.refusals import RefusalError
from graft.web.submissions import read_submission
from storage import QueueEntry, QueueRequest, Terms, request_queue, request_stop
from storage.frames import Reader
from storage.tokens import Role

router = APIRouter(tags=["queue"])


def require(role: Role) -> Callable[[Request], Holder]:
    """Who asks, if that is somebody of this role; refused with 403 otherwise."""

    def check(request: Request) -> Holder:
        holder: Holder = request.state.holder
        if not holder.may(role):
            raise RefusalError(403, f"the token {holder.name!r} has the role {holder.role}; this needs {role}")
        return holder

    return check


Submitter = Annotated[Holder, Depends(require("submit"))]


@router.get("/queue")
def show_queue(reader: OpenReader) -> QueueState:
    """The open entries in the order of the service, then the others, the newest first."""
    return QueueState(service=reader.service(), entries=reader.queue())


@router.post("/queue")
def submit(body: Submission, holder: Submitter, reader: OpenReader, request: Request, response: Response) -> Accepted:
    """Queue a space, which is read and checked first; a study of this name and space that was stopped goes on.

    202: another process that is no service writes the database; the next service takes the submission up.
    """
    settings = settings_of(request)
    study = read_submission(body.space, body.study, settings.plugins)
    check_owner(reader, study.name, holder)
    owner = body.owner if holder == LOCAL else holder.name
    terms = Terms(owner=owner, priority=body.priority, weight=body.weight, max_lanes=body.max_lanes)
    return _send(settings.database, QueueRequest.of_study(study, terms), response)


@router.post("/queue/{study}/pause")
def pause(study: StudyName, holder: Submitter, reader: OpenReader, request: Request, response: Response) -> Accepted:
    """Have a study stopped, with everything kept, until it is resumed."""
    check_owner(reader, study, holder)
    return _send(settings_of(request).database, QueueRequest(action="pause", study=study), response)


@router.post("/queue/{study}/resume")
def resume(study: StudyName, holder: Submitter, reader: OpenReader, request: Request, response: Response) -> Accepted:
    """Have a study run again that was paused or cancelled, or failed."""
    check_owner(reader, study, holder)
    return _send(settings_of(request).database, QueueRequest(action="resume", study=study), response)


@router.post("/queue/{study}/cancel")
def cancel(study: StudyName, holder: Submitter, reader: OpenReader, request: Request, response: Response) -> Accepted:
    """Have a study stopped and taken out of the queue; what it has found stays."""
    check_owner(reader, study, holder)
    return _send(settings_of(request).database, QueueRequest(action="cancel", study=study), response)


@router.put("/queue/{study}/priority")
def reprioritise(
    study: StudyName, body: Priority, holder: Submitter, reader: OpenReader, request: Request, response: Response
) -> Accepted:
    """Give a study another priority class."""
    check_owner(reader, study, holder)
    asked = QueueRequest(action="reprioritise", study=study, terms=Terms(priority=body.priority))
    return _send(settings_of(request).database, asked, response)


@router.post("/studies/{study}/stop", status_code=202)
def stop(stored: OpenStudy, holder: Submitter, reader: OpenReader, request: Request) -> None:
    """Ask a study to stop, in whatever process it runs; everything is kept."""
    name: str = stored.row["name"]
    check_owner(reader, name, holder)
    if not holder.may("admin") and _find_entry(reader, name) is None:
        raise RefusalError(403, f"study {name} was launched, not submitted: to stop it needs the role admin")
    request_stop(settings_of(request).database, name)


def check_owner(reader: Reader, study: str, holder: Holder) -> None:
    """Refuse with 403 to change another person's entry; who has the role admin may."""
    entry = _find_entry(reader, study)
    if entry and entry.owner != holder.name and not holder.may("admin"):
        raise RefusalError(403, f"study {study} is {entry.owner or 'nobody'}'s; to change it needs the role admin")


def _find_entry(reader: Reader, study: str) -> QueueEntry | None:
    return next((entry for entry in reader.queue() if entry.study == study), None)


def _send(database: str, request: QueueRequest, response: Response) -> Accepted:
    entry = request_queue(database, request)
    if entry is None:
        response.status_code = 202
    return Accepted(study=request.study, entry=entry)
