"""The pages for people: studies, the queue, figures, a matrix, workers, two studies side by side."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from graft.launching.process.run_log import RunLog
from graft.plugins.families import version
from graft.report.compatibility.reading import MatrixRequest, read_transfer
from graft.report.figures import draw_figures, figure_kinds
from graft.report.nonlinearities.learned import Learned
from graft.report.study import read as read_report
from graft.serving.listing import read_queue
from graft.stored.differences import compare_spaces
from graft.stored.status import Status, read_status
from graft.stored.studies import read_studies, read_target_objectives
from graft.web.charts.sampling import read_sample
from graft.web.charts.specs import draw_curves
from graft.web.charts.study_charts import SHOWN, best_so_far, draw_learned
from graft.web.reading import OpenReader, OpenStudy, StudyName, record_page, settings_of
from graft.web.rendering import STATIC, render
from graft.web.routes.figures import drawing
from graft.web.routes.queue import Submitter, send
from graft.web.security.access import COOKIE, find_holder
from graft.web.security.refusals import RefusalError
from search.analysis.study.two_studies import compare_studies
from search.analysis.transfer.compatibility_matrix import TransferError
from spaces.errors import SpaceError, StudyError
from spaces.reading.transfer_section import is_transfer_text
from spaces.settings import Direction
from storage import QueueRequest

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_SCRIPT, _STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
_FILES = {
    "page.js": _SCRIPT,
    "style.css": _STYLE,
    "charts.js": _SCRIPT,
    "trials.js": _SCRIPT,
    "vendored/idiomorph.min.js": _SCRIPT,
    "vendored/echarts/echarts.min.js": _SCRIPT,
}

_LOG_LINES = 100
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
    """Return a script or a style sheet; a browser that has it asks each time whether it is still the same."""
    if name not in _FILES:
        raise RefusalError(404, f"there is no file {name[:60]!r}")
    file = STATIC / name
    tag = f'"{file.stat().st_mtime_ns:x}-{version()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.read_bytes(), media_type=_FILES[name], headers=headers)
    return Response(_compress(file, tag), media_type=_FILES[name], headers={**headers, "Content-Encoding": "gzip"})


@lru_cache(maxsize=8)
def _compress(file: Path, tag: str) -> bytes:
    """Return the content of a file that has this tag, compressed."""
    return gzip.compress(file.read_bytes(), mtime=0)


@router.get("/login")
def show_login() -> HTMLResponse:
    """Where a person types a token."""
    return render("login", title="Log in", wrong=False)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Keep a token that opens something in a cookie, which no script reads and no other site sends."""
    body = (await request.body()).decode(errors="replace")
    token = parse_qs(body).get("token", [""])[0].strip()
    if find_holder(settings_of(request).database, token) is None:
        return render("login", status_code=401, title="Log in", wrong=True)
    answer = RedirectResponse("/", 303)
    answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


@router.post("/logout")
def log_out() -> Response:
    """Have the browser forget its token, which goes on to open what it did elsewhere."""
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/")
def show_studies(reader: OpenReader) -> HTMLResponse:
    """All studies that are not in the archive."""
    rows = read_studies(reader, archived=False).to_dicts()
    return render("studies", title="Studies", studies=rows)


@router.get("/queue")
def show_queue(reader: OpenReader, request: Request) -> HTMLResponse:
    """Return the queue of the service."""
    return render(
        "queue",
        title="Queue",
        service=reader.service(),
        entries=read_queue(reader, ended=True).to_dicts(),
        may_change=request.state.holder.may("submit"),
        actions=_ACTIONS,
        logged_in=bool(request.state.holder.digest),
        quotas=None if request.state.holder.requester is None else settings_of(request).quotas.describe(),
    )


@router.post("/queue/{study}/{action}")
def change_queue(
    study: StudyName,
    action: Literal["pause", "resume", "cancel"],
    holder: Submitter,
    request: Request,
) -> Response:
    """Do what a button of the queue's page asks."""
    send(settings_of(request), holder, QueueRequest(action=action, study=study))
    return RedirectResponse("/queue", 303)


@router.get("/addresses")
def show_addresses(request: Request) -> HTMLResponse:
    """Return the page of addresses for programs, from the OpenAPI description, without a network."""
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    addresses = [
        {
            "method": method.upper(),
            "path": path,
            "says": one.get("description", one["summary"]).partition("\n")[0],
            "values": ", ".join(value["name"] for value in one.get("parameters", ()) if value["in"] == "query"),
        }
        for path, methods in paths.items()
        for method, one in methods.items()
    ]
    return render("addresses", title="Addresses", addresses=addresses)


@router.get("/studies/{study}/figures")
def show_figures(
    stored: OpenStudy, reader: OpenReader, kind: Annotated[str, Query(pattern=r"^[a-z0-9_]{0,60}$")] = ""
) -> HTMLResponse:
    """Return the figures of the study's report, one kind at a time."""
    data = read_report(reader, stored.row["name"])
    with drawing:
        kinds = figure_kinds(data)
        captions: list[str] = []
        # Of no kind in particular: the first one that has something to draw.
        for one in [kind] if kind else kinds:
            try:
                kind, captions = one, [picture.caption for picture in draw_figures(data, one)]
            except StudyError as error:
                raise RefusalError(404, str(error)) from None
            if captions:
                break
    title = f"Figures of {stored.row['name']}"
    return render("figures", title=title, name=stored.row["name"], kinds=kinds, kind=kind, figures=captions)


@router.get("/studies/{study}/workers")
def show_workers(stored: OpenStudy, request: Request) -> HTMLResponse:
    """Return the workers that trained for a study, those seen last first, and the last lines of its runs."""
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
        _refuse_own_code(stored)
    directions: dict[str, Direction] = {
        task: one.direction for task, one in read_target_objectives(reader, stored.row).items()
    }
    found = stored.architectures.read_best(SHOWN, directions)
    panels = Learned.of(stored.row, found, directions).panels if found.height else []
    shown = [{"title": panel.title, "chart": draw_learned(panel), "members": panel.members[:SHOWN]} for panel in panels]
    return render(
        "nonlinearities", title=f"Non-linearities of {name}", name=name, panels=shown, all=stored.architectures.count()
    )


@router.get("/studies/{study}/matrix")
def show_matrix(
    stored: OpenStudy,
    reader: OpenReader,
    source: Annotated[str, Query(max_length=200)] = "",
    target: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """Return the compatibility matrix of a transfer, and the pairs of one of its cells."""
    name: str = stored.row["name"]
    _refuse_own_code(stored)
    try:
        transfer, _ = read_transfer(reader, name, MatrixRequest())
    except TransferError as error:  # the study's page links here from its start
        return render("matrix", title=f"Compatibility matrix of {name}", name=name, transfer=None, missing=str(error))
    pairs = transfer.matrix.pairs.filter(source=source, target=target)
    return render(
        "matrix",
        title=f"Compatibility matrix of {name}",
        name=name,
        transfer=transfer,
        cell=transfer.cells.get((source, target)),
        source=source,
        target=target,
        pairs=pairs.to_dicts(),
    )


def _refuse_own_code(stored: OpenStudy) -> None:
    """Refuse what needs the space of a transfer, and so its plug-ins."""
    if stored.sources().height:
        raise RefusalError(403, f"study {stored.row['name']} has plug-ins of its own, whose code does not run here")


@router.get("/compare")
def show_comparison(
    reader: OpenReader,
    request: Request,
    a: Annotated[str, Query(max_length=100)] = "",
    b: Annotated[str, Query(max_length=100)] = "",
) -> HTMLResponse:
    """Two studies side by side."""
    names = reader.studies()["name"].to_list()
    values: dict[str, Any] = {
        "title": "Compare two studies",
        "names": names,
        "chosen": {"a": a, "b": b},
        "sides": [],
        "portions": [],
    }
    if not (a and b):
        return render("compare", **values)
    try:
        both = [reader.study(name) for name in (a, b)]
    except StudyError as error:
        raise RefusalError(404, str(error)) from None
    for one in both:
        record_page(reader, request, one)
    samples = [read_sample(one) for one in both]
    same_objective = len({(one.row["objective"], one.row["direction"]) for one in both}) == 1
    lines = [
        best_so_far(one, sample.trials)._replace(name=one.row["name"])
        for one, sample in zip(both, samples, strict=True)
        if sample.trials.height and same_objective
    ]
    statuses: list[Status] = [read_status(reader, one.row["name"]) for one in both]
    spaces = [one.row["space"] for one in both]
    values["sides"] = [
        {"name": one.row["name"], "status": status, "note": sample.note}
        for one, status, sample in zip(both, statuses, samples, strict=True)
    ]
    objectives = {side: one.scores() for side, one in zip("ab", both, strict=True)}
    if same_objective:
        values["portions"] = compare_studies(objectives, maximize=both[0].row["direction"] == "maximize").to_dicts()
    return render(
        "compare",
        **values,
        chart=draw_curves(lines, ("trial", both[0].row["objective"]), "best so far", steps=True) if lines else None,
        same_objective=same_objective,
        differences=_list_differences(*spaces),
    )


def _list_differences(before: str, after: str) -> list[str]:
    try:
        return [str(one) for one in compare_spaces(before, after)]
    except SpaceError as error:  # of an older version, perhaps
        return [f"not known: {error}"]
