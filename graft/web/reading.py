"""A reader of the database for each request, and the study that its address names."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.exceptions import ResponseValidationError
from jinja2 import TemplateError
from polars.exceptions import PolarsError

from graft.stored.claims import note_look
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


def find_study(study: StudyName, reader: OpenReader, request: Request) -> StudyReader:
    """Return the study of the address; refused with 404 if there is none.

    An address that shows interim results of a study with a claim is recorded as a look. An open
    page asks for `/live` whenever something changes, which is part of that look.
    """
    try:
        stored = reader.study(study)
    except StudyError as error:
        raise RefusalError(404, str(error)) from None
    path = request.url.path
    shows_nothing = path.endswith(("/live", "/workers")) or path == f"/api/studies/{study}"
    if request.method == "GET" and not shows_nothing:
        record_page(reader, request, stored)
    return stored


def record_page(reader: Reader, request: Request, study: StudyReader) -> None:
    """Record that a page shows results of an unfinished study, as `note_look` does."""
    if study.row["state"] != "finished":
        page = f"page {request.url.path}"
        note_look(reader, settings_of(request).database, study.row["name"], page)


OpenStudy = Annotated[StudyReader, Depends(find_study)]


STRANGE = (
    *(ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(ResponseValidationError, PolarsError, TemplateError),
)
"""Errors that reading rows which were edited by hand may raise."""


def refuse(error: Exception, url: str) -> RefusalError:
    """Return the answer for our errors, without `url`, and for damaged rows; raise others again."""
    if isinstance(error, RefusalError):
        return error
    if not isinstance(error, GraftError):
        damage = describe_damage(url) if isinstance(error, STRANGE) else None
        if damage is None:
            raise error
        error = RowError(damage)
    status = 403 if isinstance(error, AccessError | QuotaError) else 503 if isinstance(error, AwayError) else 400
    reason = str(error).replace(find_database(url).name, "")
    return RefusalError(status, re.sub(r"^\s*:\s*", "", reason))
