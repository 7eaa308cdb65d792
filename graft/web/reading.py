"""A reader of the database for each request, and the study that its address names."""

from __future__ import annotations

from collections.abc import Generator, Set
from datetime import datetime
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Path, Request
from fastapi.exceptions import ResponseValidationError
from jinja2 import TemplateError
from polars.exceptions import PolarsError

from graft.stored.claims import note_look, read_history
from graft.web.security.refusals import RefusalError
from graft.web.settings import QuotaError, Settings
from spaces.bounds import MOST_TRIALS
from spaces.errors import AccessError, GraftError, RowError, StudyError
from storage.checking import describe_damage
from storage.databases import find_database
from storage.databases.database import AwayError
from storage.frames import Reader, open_reader
from storage.frames.study import StudyReader
from storage.new_study import NAME

StudyName = Annotated[str, Path(pattern=f"^{NAME}$", description="Name of a study.")]
Number = Annotated[int, Path(ge=0, lt=MOST_TRIALS, description="Number of a trial.")]


def settings_of(request: Request) -> Settings:
    """Return the settings of the application that got the request."""
    return request.app.state.settings


def read_database(request: Request) -> Generator[Reader]:
    """Yield a reader for as long as the request takes."""
    settings = settings_of(request)
    with open_reader(settings.database, settings.answer_seconds) as reader:
        yield reader


OpenReader = Annotated[Reader, Depends(read_database)]


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that a page sends.

    Only this waits for the body: a route that works on the database is no coroutine, so that other
    requests are answered meanwhile.
    """
    return parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)


Form = Annotated[dict[str, list[str]], Depends(read_form)]


def find_study(study: StudyName, reader: OpenReader, request: Request) -> StudyReader:
    """Return the study of the address; refused with 404 if there is none.

    An address that shows interim results of a study with a claim is recorded as a look. An open
    page asks for `/live` and for the events of its study again and again, which is part of the look
    at that page. A stream of events that continues an earlier one is part of the look at that one.
    """
    try:
        stored = reader.study(study)
    except StudyError as error:
        raise RefusalError(404, str(error)) from None
    path, page = request.url.path, f"/studies/{study}"
    stream = f"/api{page}/events"
    if request.method != "GET" or path in (f"{page}/workers", f"/api{page}/workers", f"/api{page}"):
        return stored
    opened = {page} if path in (f"{page}/live", stream) else set[str]()
    if path == stream and ("last-event-id" in request.headers or "after" in request.query_params):
        opened.add(stream)
    if stored.row["state"] != "finished" and not _was_opened(request, stored, opened):
        record_page(reader, request, stored, page if path == f"{page}/live" else path)
    return stored


def record_page(reader: Reader, request: Request, study: StudyReader, path: str) -> None:
    """Record that a page shows results of an unfinished study, as `note_look` does."""
    if study.row["state"] == "finished":
        return
    note = note_look(reader, settings_of(request).database, study.row["name"], f"page {path}")
    page = f"/studies/{study.row['name']}"
    if note and path in (page, f"/api{page}/events"):
        request.app.state.opened_pages.add((*_identify(study), path))


def _was_opened(request: Request, study: StudyReader, pages: Set[str]) -> bool:
    """Return True if a look at one of a study's pages is recorded, or will be when a launch has ended."""
    if any((*_identify(study), page) in request.app.state.opened_pages for page in pages):
        return True
    commands = {f"page {page}" for page in pages}
    return bool(commands) and any(row["command"] in commands for row in read_history(study))


def _identify(study: StudyReader) -> tuple[int, datetime]:
    """Return what no other study has; an id alone may have been that of one that was deleted."""
    return study.row["id"], study.row["created_at"]


OpenStudy = Annotated[StudyReader, Depends(find_study)]


STRANGE = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(ResponseValidationError, PolarsError, TemplateError),
)
"""Errors that reading rows which were edited by hand may raise."""


def refuse(error: Exception, url: str) -> RefusalError:
    """Return the answer for our errors and for damaged rows; raise others again.

    It does not say where the database of `url` lies.
    """
    if isinstance(error, RefusalError):
        return error
    if not isinstance(error, GraftError):
        damage = describe_damage(url) if isinstance(error, STRANGE) else None
        if damage is None:
            raise error
        error = RowError(damage)
    status = 403 if isinstance(error, AccessError | QuotaError) else 503 if isinstance(error, AwayError) else 400
    name = find_database(url).name
    return RefusalError(status, str(error).removeprefix(f"{name}: ").replace(name, "the database"))
