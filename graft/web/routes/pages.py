"""The pages for people beside those of studies: queue and workers, figures, logs, login."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from graft.launching.process.run_log import RunLog
from graft.plugins.families import version
from graft.report.figures import figure_kinds
from graft.report.nonlinearities.learned import Learned
from graft.report.rendering import html
from graft.serving.listing import read_queue
from graft.stored.studies import read_target_objectives
from graft.web.callers import Submitter
from graft.web.charts.study_charts import SHOWN, draw_learned
from graft.web.reading import Form, OpenReader, OpenStudy, StudyName, settings_of
from graft.web.rendering import STATIC, render
from graft.web.routes.figures import draw, read_report
from graft.web.routes.matrices import refuse_own_code
from graft.web.security.access import COOKIE, find_holder
from graft.web.security.refusals import RefusalError
from spaces.reading.transfer_section import is_transfer_text
from spaces.settings import Direction
from storage import StoreRequest

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_SHARED = (html.STYLE, html.MATRIX_SCRIPT)
"""Files that reports have, too."""
_FILES = {f"{file.relative_to(STATIC)}": file for file in STATIC.rglob("*.js")} | {file.name: file for file in _SHARED}
_MEDIA = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_LOG_LINES = 100
_WORKERS = """
SELECT workers.id, studies.name AS study, host, device, heartbeat_at, workers.steps, room, (
  SELECT count(*) FROM trials WHERE study_id = studies.id AND trials.state = 'running' AND worker = workers.id
) AS lanes
FROM workers JOIN studies ON studies.id = study_id
WHERE workers.state = 'running' AND lease_until > CURRENT_TIMESTAMP ORDER BY host, workers.id, studies.name
"""
"""The workers whose lease holds."""
_ACTIONS = {
    "waiting": ("pause", "cancel"),
    "running": ("pause", "cancel"),
    "paused": ("resume", "cancel"),
    "cancelled": ("resume",),
    "failed": ("resume",),
    "done": (),
}
"""State of an entry of the queue -> the buttons that it has."""


@router.get("/static/{name:path}")
def send_static(name: str, request: Request) -> Response:
    """Return a script or a style sheet; a browser asks each time whether it is still the same."""
    if name not in _FILES:
        raise RefusalError(404, f"there is no file {name[:60]!r}")
    file, media = _FILES[name], _MEDIA[_FILES[name].suffix]
    tag = f'"{file.stat().st_mtime_ns:x}-{version()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.read_bytes(), media_type=media, headers=headers)
    headers["Content-Encoding"] = "gzip"
    return Response(_compress(file, tag), media_type=media, headers=headers)


@lru_cache(maxsize=8)
def _compress(file: Path, tag: str) -> bytes:
    """Return the content of a file that has this tag, compressed."""
    return gzip.compress(file.read_bytes(), mtime=0)


@router.get("/login")
def show_login() -> HTMLResponse:
    """Return the page on which a person types a token."""
    return render("login", title="Log in", wrong=False)


@router.post("/login")
def log_in(request: Request, form: Form) -> Response:
    """Keep a valid token in a cookie that no script reads and no other site sends."""
    token = form.get("token", [""])[0].strip()
    if find_holder(settings_of(request).database, token) is None:
        return render("login", status_code=401, title="Log in", wrong=True)
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
def log_out() -> Response:
    """Have the browser forget its token, which goes on to open what it did elsewhere."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/queue")
def show_queue(reader: OpenReader, request: Request) -> HTMLResponse:
    """Return the queue of the service, and the workers that train now."""
    workers, holder = reader.query(_WORKERS).to_dicts(), request.state.holder
    return render(
        "queue",
        title="Queue and workers",
        workers=workers,
        lanes=sum(worker["lanes"] for worker in workers),
        service=reader.service(),
        entries=read_queue(reader, ended=True).to_dicts(),
        may_change=holder.may("submit"),
        actions=_ACTIONS,
        logged_in=bool(holder.digest),
        quotas=None if holder.requester is None else settings_of(request).quotas.describe(),
    )


@router.post("/queue/{study}/{action}")
def change_queue(study: StudyName, action: Literal["pause", "resume", "cancel"], caller: Submitter) -> Response:
    """Do what a button of the queue's page asks."""
    caller.send(StoreRequest(action=action, study=study))
    return RedirectResponse("/queue", 303)


@router.get("/addresses")
def show_addresses(request: Request) -> HTMLResponse:
    """Return the page of addresses for programs, from the OpenAPI description."""
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    addresses = [
        {
            "method": method.upper(),
            "path": path,
            "says": operation.get("description", operation["summary"]).partition("\n")[0],
            "values": ", ".join(value["name"] for value in operation.get("parameters", ()) if value["in"] == "query"),
        }
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]
    return render("addresses", title="HTTP API", addresses=addresses)


@router.get("/studies/{study}/figures")
def show_figures(
    stored: OpenStudy, reader: OpenReader, kind: Annotated[str, Query(pattern=r"^[a-z0-9_]{0,60}$")] = ""
) -> HTMLResponse:
    """Return the figures of the study's report, one kind at a time."""
    name: str = stored.row["name"]
    data = read_report(stored, reader)
    kinds = figure_kinds(data)
    captions: list[str] = []
    # Without a kind: the first one that has something to draw.
    for candidate in [kind] if kind else kinds:
        kind, captions = candidate, [picture.caption for picture in draw(data, candidate)]
        if captions:
            break
    return render("figures", title=f"Figures of {name}", name=name, kinds=kinds, kind=kind, figures=captions)


@router.get("/studies/{study}/workers")
def show_workers(stored: OpenStudy, request: Request) -> HTMLResponse:
    """Return the workers that trained for a study, the last seen first, and the end of its log."""
    name: str = stored.row["name"]
    rows = stored.workers().sort("heartbeat_at", descending=True).to_dicts()
    lines = RunLog.of(settings_of(request).database).read(name, _LOG_LINES)
    training = stored.trials("state = 'running'", columns=("worker",))["worker"].value_counts()
    lanes = dict(training.iter_rows())
    return render("workers", title=f"Workers of {name}", name=name, workers=rows, lanes=lanes, lines=lines)


@router.get("/studies/{study}/nonlinearities")
def show_nonlinearities(stored: OpenStudy, reader: OpenReader) -> HTMLResponse:
    """Return the non-linearities that trials of a study learned, those of the best trials."""
    name: str = stored.row["name"]
    if is_transfer_text(stored.row["space"]):
        refuse_own_code(stored)
    objectives = read_target_objectives(reader, stored.row).items()
    directions: dict[str, Direction] = {task: objective.direction for task, objective in objectives}
    best = stored.architectures.read_best(SHOWN, directions)
    panels = Learned.of(stored.row, best, directions).panels if best.height else []
    shown = [{"title": panel.title, "chart": draw_learned(panel), "members": panel.members[:SHOWN]} for panel in panels]
    title, count = f"Non-linearities of {name}", stored.architectures.count()
    return render("nonlinearities", title=title, name=name, panels=shown, all=count)
