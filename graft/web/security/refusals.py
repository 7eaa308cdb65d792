"""Refusals: one line for the client, and one line of JSON for the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi.responses import JSONResponse, RedirectResponse, Response

from graft.web.rendering import render

LOG = logging.getLogger("graft.web")
_FOR_PROGRAMS = ("/api", "/static/")
_LONGEST = 200
"""Characters of a path or a reason that the log keeps."""


class RefusalError(Exception):
    """A request is refused: its status, the reason in one line, and headers of the answer."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


def log_refusal(refusal: RefusalError, scope: Mapping[str, Any]) -> None:
    """Log the refusal of a request, by its ASGI scope."""
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "event": "refused",
        "status": refusal.status,
        "reason": refusal.reason[:_LONGEST],
        "method": scope["method"],
        "path": scope["path"][:_LONGEST],
        "client": (scope.get("client") or ("unknown",))[0],
        "token": scope.get("state", {}).get("token"),
    }
    LOG.warning(json.dumps(entry))


def answer(refusal: RefusalError, scope: Mapping[str, Any]) -> Response:
    """Log a refusal and return its answer: `{"error": ...}`, a page, or the way to the login."""
    log_refusal(refusal, scope)
    if scope["path"].startswith(_FOR_PROGRAMS):
        return JSONResponse({"error": refusal.reason}, refusal.status, dict(refusal.headers))
    if refusal.status == 401:
        return RedirectResponse("/login", 303)
    title = "Not found" if refusal.status == 404 else "Refused"
    answer = render("refusal", status_code=refusal.status, title=title, reason=refusal.reason)
    answer.headers.update(refusal.headers)
    return answer
