"""The application of a server: its routes, behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from graft.plugins.families import version
from graft.web.checking import Checker
from graft.web.models import Problem
from graft.web.reading import STRANGE, refuse, settings_of
from graft.web.routes import (
    events,
    exports,
    figures,
    frames,
    matrices,
    numbers,
    pages,
    queue,
    studies,
    study_list,
    study_pages,
    trial_table,
    trials,
)
from graft.web.security.access import Holder, find_holder
from graft.web.security.guard import Counts, Guard
from graft.web.security.refusals import RefusalError, answer
from graft.web.settings import Settings
from graft.web.sparing import spare
from spaces.errors import GraftError
from spaces.messages import shorten
from storage.databases import find_database

API = "/api"
PAGES = (pages, study_list, matrices, trial_table, study_pages)
"""The modules of the pages that people read."""
_API_MODULES = (studies, trials, frames, figures, exports, events, queue, numbers)
"""The modules of what programs ask, under `/api`."""
_STATUSES = (400, 401, 403, 404, 413, 422, 429, 503)
_PROBLEMS: dict[int | str, dict[str, Any]] = {status: {"model": Problem} for status in _STATUSES}


def create_app(settings: Settings, trains: Callable[[], bool] = lambda: True) -> Guard:
    """Return the application of one database, for any ASGI server; it reads when first asked.

    `trains` tells whether studies train beside it now; while they do, answers take no more than
    `settings.processor` cores. Raises StorageError for what is no URL of a database.
    """
    find_database(settings.database)
    app = FastAPI(
        title="Graft",
        version=version(),
        description='The studies of one database. An error is `{"error": "one line"}`.',
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere, which the guard's policy forbids
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.streams = Counts(settings.streams, settings.streams_each)
    app.state.opened_pages = set[tuple[int, datetime, str]]()
    app.state.checker = Checker(settings.check_seconds)
    for module in _API_MODULES:
        app.include_router(module.router, prefix=API, responses=_PROBLEMS)
    for module in PAGES:
        app.include_router(module.router)
    app.router.routes.append(Route(f"{API}/mcp", _ToolsEndpoint(), methods=["POST"]))
    for kind in (RefusalError, GraftError, RequestValidationError, HTTPException, *STRANGE):
        app.add_exception_handler(kind, _refuse)
    spared = spare(app, settings, trains)
    app.state.sparing = spared

    def find(token: str) -> Holder | None:
        try:
            return find_holder(settings.database, token)
        except GraftError as error:
            raise refuse(error, settings.database) from None

    return Guard(spared.app if spared else app, settings, find)


class _ToolsEndpoint:
    """The tools of programs, by the Model Context Protocol; its package is imported at the first call."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            from graft.web.tools.server import answer_http
        except ModuleNotFoundError as error:
            reason = f"{error.name} is not installed on the server; pip install 'graft-search[mcp]'"
            raise RefusalError(501, reason) from None
        await answer_http(scope, receive, send)


def _refuse(request: Request, error: Exception) -> Response:
    match error:
        case HTTPException():
            refusal = RefusalError(error.status_code, f"{error.detail}", error.headers)
        case RequestValidationError():
            first = error.errors()[0]
            reason = f"{shorten('.'.join(map(str, first['loc'])))}: {first['msg']}"
            if first["loc"] == ("body",):
                reason = "the body must be a JSON object, sent as Content-Type: application/json"
            refusal = RefusalError(422, reason)
        case _:
            refusal = refuse(error, settings_of(request).database)
    return answer(refusal, request.scope)
