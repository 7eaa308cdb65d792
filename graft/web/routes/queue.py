"""The queue of the service: what waits and runs, and what people ask of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response

from graft.web.checking import Checker
from graft.web.models import Accepted, Priority, QueueState, Submission
from graft.web.reading import OpenReader, OpenStudy, StudyName, settings_of
from graft.web.security.access import LOCAL, Holder
from graft.web.security.guard import name_client
from graft.web.security.refusals import RefusalError
from graft.web.settings import Quotas, Settings
from graft.web.submissions import Submitted
from spaces.errors import StudyError
from storage import QueueEntry, QueueRequest, Terms, open_reader, request_queue, request_stop
from storage.frames import Reader
from storage.queue import NEEDS_ADMIN
from storage.tokens import Role

router = APIRouter(tags=["queue"])


def check_role(holder: Holder, role: Role) -> Holder:
    """Return who asks; refused with 403 if what needs the role is not for them."""
    if not holder.may(role):
        raise RefusalError(403, f"the token {holder.name!r} has the role {holder.role}; this needs {role}")
    return holder


def _require_submit(request: Request) -> Holder:
    return check_role(request.state.holder, "submit")


Submitter = Annotated[Holder, Depends(_require_submit)]


@router.get("/queue")
def show_queue(reader: OpenReader) -> QueueState:
    """Return the open entries in the order of the service, then the others, the newest first."""
    return QueueState(service=reader.service(), entries=reader.queue())


@router.post("/queue")
def submit(body: Submission, holder: Submitter, reader: OpenReader, request: Request, response: Response) -> Accepted:
    """Queue a space, which is read and checked first; a study of this name and space that was stopped goes on.

    One that is in the queue stays as it is; `submitted_at` of the entry says since when.

    202: another process that is no service writes the database; the next service takes the submission up.
    """
    settings = settings_of(request)
    if body.study:
        check_owner(reader, body.study, holder)
    quotas = quotas_of(settings, holder)
    if quotas:
        quotas.check("priority", body.priority)
        quotas.check("weight", body.weight)
        quotas.check("lanes", body.max_lanes or 0)
    owner = body.owner if holder == LOCAL else holder.name
    max_lanes = body.max_lanes or (int(quotas.lanes) if quotas else None)
    terms = Terms(owner=owner, priority=body.priority, weight=body.weight, max_lanes=max_lanes)
    submitted = Submitted(
        text=body.space, name=body.study, plugins=settings.plugins, resources=settings.resources, quotas=quotas
    )
    checker: Checker = request.app.state.checker
    checked = checker.check(submitted, name_client(request.scope))
    return _send(request, holder, replace(checked, terms=terms), response)


def quotas_of(settings: Settings, holder: Holder) -> Quotas | None:
    """Return what a person may ask for; None for the role admin, which may ask for all."""
    return None if holder.requester is None else settings.quotas


@router.post("/queue/{study}/{action}")
def change(
    study: StudyName,
    action: Literal["pause", "resume", "cancel"],
    holder: Submitter,
    request: Request,
    response: Response,
) -> Accepted:
    """Pause a study until it is resumed, resume one that was stopped or failed, or cancel it; what it found stays."""
    return _send(request, holder, QueueRequest(action=action, study=study), response)


@router.put("/queue/{study}/priority")
def reprioritise(study: StudyName, body: Priority, holder: Submitter, request: Request, response: Response) -> Accepted:
    """Give a study another priority class."""
    if holder.requester is not None:
        settings_of(request).quotas.check("priority", body.priority)
    asked = QueueRequest(action="reprioritise", study=study, terms=Terms(priority=body.priority))
    return _send(request, holder, asked, response)


@router.post("/studies/{study}/stop", status_code=202)
def stop(stored: OpenStudy, holder: Submitter, reader: OpenReader, request: Request) -> None:
    """Ask a study to stop, in whatever process it runs; everything is kept."""
    name: str = stored.row["name"]
    check_change(reader, name, holder)
    if holder.requester is None:
        request_stop(settings_of(request).database, name)
    else:  # by the queue, where the transaction that does it looks whose study it is
        send(settings_of(request), holder, QueueRequest(action="pause", study=name))


def check_change(reader: Reader, study: str, holder: Holder) -> None:
    """Refuse with 403 to change a study that is not the holder's by the queue, unless the role is admin."""
    check_owner(reader, study, holder)
    if not holder.may("admin") and _find_entry(reader, study) is None:
        raise RefusalError(403, f"study {study} was launched, not submitted: {NEEDS_ADMIN}")


def check_owner(reader: Reader, study: str, holder: Holder) -> None:
    """Refuse with 403 to change another person's entry; who has the role admin may.

    It spares the work; that an entry is its owner's is checked again by the transaction that changes it.
    """
    entry = _find_entry(reader, study)
    if entry and entry.owner != holder.name and not holder.may("admin"):
        raise RefusalError(403, f"study {study} is {entry.owner or 'nobody'}'s; {NEEDS_ADMIN}")


def _find_entry(reader: Reader, study: str) -> QueueEntry | None:
    return next((entry for entry in reader.queue() if entry.study == study), None)


def send(settings: Settings, holder: Holder, asked: QueueRequest) -> QueueEntry | None:
    """Have a request to the queue done on behalf of its holder; the entry, as `request_queue` gives it."""
    most = int(settings.quotas.studies)
    with open_reader(settings.database, settings.answer_seconds) as reader:
        check_owner(reader, asked.study, holder)
    try:
        return request_queue(settings.database, replace(asked, by=holder.requester, most_open=most))
    except StudyError as error:  # a service that refuses sends a line alone
        if str(error).endswith(NEEDS_ADMIN):
            raise RefusalError(403, str(error)) from None
        raise


def _send(request: Request, holder: Holder, asked: QueueRequest, response: Response) -> Accepted:
    entry = send(settings_of(request), holder, asked)
    if entry is None:
        response.status_code = 202
    return Accepted(study=asked.study, entry=entry)
