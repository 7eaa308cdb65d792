"""The queue of the service: its entries, and what people ask of it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from graft.web.callers import Caller, Submitter
from graft.web.models import Accepted, Priority, QueueState, Submission
from graft.web.reading import OpenReader, OpenStudy, StudyName
from storage import StoreRequest, Terms, request_stop

router = APIRouter(tags=["queue"])


@router.get("/queue")
def show_queue(reader: OpenReader) -> QueueState:
    """Return the open entries in the order of the service, then the others, the newest first."""
    return QueueState(service=reader.service(), entries=reader.queue())


@router.post("/queue")
def submit(body: Submission, caller: Submitter, response: Response) -> Accepted:
    """Queue a space that is sound; a study of this name and space that was stopped is resumed.

    One that is in the queue stays as it is; `submitted_at` of the entry says since when.

    202: another process that is no service writes the database; the next service takes it up.
    """
    return _send(caller, caller.plan(body), response)


@router.post("/queue/{study}/{action}")
def change(
    study: StudyName, action: Literal["pause", "resume", "cancel"], caller: Submitter, response: Response
) -> Accepted:
    """Pause a study until it is resumed, resume a stopped or failed one, or cancel it."""
    return _send(caller, StoreRequest(action=action, study=study), response)


@router.put("/queue/{study}/priority")
def reprioritise(study: StudyName, body: Priority, caller: Submitter, response: Response) -> Accepted:
    """Give a study another priority class."""
    if caller.quotas:
        caller.quotas.check("priority", body.priority)
    asked = StoreRequest(action="reprioritise", study=study, terms=Terms(priority=body.priority))
    return _send(caller, asked, response)


@router.post("/studies/{study}/stop", status_code=202)
def stop(stored: OpenStudy, caller: Submitter, reader: OpenReader) -> None:
    """Ask a study to stop, in whatever process it runs; everything is kept."""
    name: str = stored.row["name"]
    caller.check_change(reader, name)
    if caller.holder.requester is None:
        request_stop(caller.settings.database, name)
    else:  # by the queue, where the transaction that does it looks whose study it is
        caller.send(StoreRequest(action="pause", study=name))


def _send(caller: Caller, asked: StoreRequest, response: Response) -> Accepted:
    entry = caller.send(asked)
    if entry is None:
        response.status_code = 202
    return Accepted(study=asked.study, entry=entry)
