"""The page of all studies, changes to them, and any number of studies side by side."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from graft.launching.editing.administration import archive_study, delete_study, rename_study, tag_study, write_note
from graft.launching.progress_text import duration
from graft.stored.differences import compare_spaces
from graft.stored.status import read_clock, read_last_ends, read_status
from graft.stored.studies import has_arms, read_studies
from graft.web.callers import Submitter
from graft.web.charts.arms import view_arms
from graft.web.charts.sampling import read_sample
from graft.web.charts.specs import draw_curves
from graft.web.charts.study_charts import best_so_far
from graft.web.reading import Form, OpenReader, OpenStudy, record_page
from graft.web.rendering import render
from graft.web.security.refusals import RefusalError
from search.analysis.study.best_trials import summarise_best
from spaces.errors import SpaceError, StudyError
from spaces.reading.transfer_section import has_one_objective
from storage.frames import Reader
from storage.frames.study import StudyReader

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_MOST_COMPARED = 16
_HEADS = {
    "name": "study",
    "state": "state",
    "best": "best",
    "progress": "trials ended",
    "owner": "owner",
    "created_at": "created (UTC)",
    "seconds": "duration",
    "tags": "tags",
    "note": "note",
}
"""Column -> its head; all of them can be sorted by."""
Column = Literal["name", "state", "progress", "best", "owner", "created_at", "seconds", "tags", "note"]
Names = Annotated[list[str], Query(max_length=100)]


@router.get("/")
def show_studies(
    reader: OpenReader,
    request: Request,
    q: Annotated[str, Query(max_length=200)] = "",
    sort: Column = "created_at",
    up: bool = False,
    archived: bool = False,
) -> HTMLResponse:
    """Return the studies whose name, state, owner, tags or note hold each word of `q`."""
    every = read_studies(reader).filter(archived=archived)
    studies = _add_facts(reader, every)
    studies = studies.sort(sort, descending=not up, nulls_last=True, maintain_order=True)
    text = pl.concat_str("name", "state", "owner", "tags", "note", separator=" ").str.to_lowercase()
    for word in q.lower().split():
        studies = studies.filter(text.str.contains(word, literal=True))
    heads: list[dict[str, str]] = []
    for name, head in _HEADS.items():
        query = {"q": q, "sort": name, "up": int(name == sort and not up), "archived": int(archived)}
        order = "none" if name != sort else "ascending" if up else "descending"
        heads.append({"text": head, "column": name, "order": order, "href": f"?{urlencode(query)}"})
    return render(
        "studies",
        title="Studies",
        studies=studies.to_dicts(),
        heads=heads,
        all=every.height,
        chosen={"q": q, "sort": sort, "up": int(up), "archived": archived},
        in_archive=int(reader.studies()["archived"].sum()),
        may_change=request.state.holder.may("submit"),
        duration=duration,
    )


def _add_facts(reader: Reader, studies: pl.DataFrame) -> pl.DataFrame:
    """Return the studies with owner, reason (why one waits), progress (0 to 1) and seconds."""
    queue = [(entry.study, entry.owner, entry.state, entry.reason) for entry in reader.queue()]
    columns = ("name", "owner", "queue_state", "reason")
    entries = pl.DataFrame(queue, dict.fromkeys(columns, pl.String()), orient="row")
    until = pl.when(state="running").then(pl.lit(read_clock(reader))).otherwise(pl.col("last"))
    return (
        studies.join(entries, on="name", how="left", maintain_order="left")
        .join(read_last_ends(reader), on="name", how="left", maintain_order="left")
        .with_columns(
            pl.col("owner", "reason").fill_null(""),
            state=pl.when(queue_state="waiting").then("queue_state").otherwise("state"),
            progress=pl.col("ended") / pl.col("trials").clip(1),
            seconds=(until - pl.col("created_at")).dt.total_seconds().clip(0),
        )
    )


@router.post("/studies")
def change_studies(reader: OpenReader, caller: Submitter, form: Form) -> RedirectResponse:
    """Move the ticked studies to the archive, or back."""
    names = form.get("study", [])
    for name in names:
        caller.check_change(reader, name)
    for name in names:
        archive_study(caller.settings.database, name, archived=form.get("action") == ["archive"])
    return RedirectResponse("/", 303)


@router.post("/studies/{study}/{action}")
def change_study(
    stored: OpenStudy,
    action: Literal["note", "tags", "rename", "delete"],
    reader: OpenReader,
    caller: Submitter,
    form: Form,
) -> RedirectResponse:
    """Do what a form of a study's page asks; to rename and to delete needs the role admin."""
    name: str = stored.row["name"]
    url = caller.settings.database
    text = form.get("text", [""])[0].strip()
    caller.check_change(reader, name)
    if action in ("rename", "delete"):
        caller.require("admin")
    if action == "note":
        write_note(url, name, text)
    elif action == "tags":
        tag_study(url, name, text.split(), {*json.loads(stored.row["tags"])} - {*text.split()})
    elif action == "rename":
        rename_study(url, name, text)
        name = text
    elif text != name:
        raise RefusalError(400, f"to delete study {name} type its name; typed was {text[:100]!r}")
    else:
        delete_study(url, name)
        return RedirectResponse("/", 303)
    return RedirectResponse(f"/studies/{name}", 303)


@router.get("/compare")
def show_comparison(
    reader: OpenReader,
    request: Request,
    study: Names = [],  # noqa: B006 - FastAPI copies it
    baseline: Annotated[str | None, Query(max_length=200)] = None,
) -> HTMLResponse:
    """Return studies side by side; of studies that all have arms, the arms against any of them."""
    names = [*dict.fromkeys(study)]
    if len(names) > _MOST_COMPARED:
        raise RefusalError(400, f"{len(names)} studies; at most {_MOST_COMPARED} are compared at once")
    every = reader.studies()["name"].to_list()
    values: dict[str, Any] = {"names": every, "chosen": names, "arms": None, "sides": []}
    try:
        stored = [reader.study(name) for name in names]
        for side in stored:
            record_page(reader, request, side, request.url.path)
        if names and all(map(has_arms, stored)):
            values["arms"] = view_arms(reader, names, baseline)
    except StudyError as error:
        if baseline or not set(names) <= set(every):
            raise RefusalError(404, str(error).replace("--baseline", "baseline")) from None
        values["problem"] = f"The arms cannot be compared: {error}."
    else:
        values["problem"] = ""
    if len(names) > 1 and not values["arms"]:
        values |= _compare(reader, [reader.study(name) for name in names])
    return render("compare", title="Compare studies", **values)


def _share_objective(stored: list[StudyReader]) -> bool:
    """Return True if one number compares all trials of these studies."""
    objectives = {(study.row["objective"], study.row["direction"]) for study in stored}
    return len(objectives) == 1 and all(has_one_objective(study.row["space"]) for study in stored)


def _compare(reader: Reader, stored: list[StudyReader]) -> dict[str, Any]:
    """Return what the page shows of two studies or more."""
    first = stored[0].row
    has_one = _share_objective(stored)
    samples = [read_sample(study) for study in stored]
    lines = [
        best_so_far(study, sample.trials)._replace(name=study.row["name"])
        for study, sample in zip(stored, samples, strict=True)
        if sample.trials.height and has_one
    ]
    scores = {study.row["name"]: study.scores() for study in stored} if has_one else {}
    differences: list[tuple[str, list[str]]] = []
    for study in stored[1:]:
        try:
            changes = [*map(str, compare_spaces(first["space"], study.row["space"]))]
        except SpaceError as error:  # of an older version, perhaps
            changes = [f"not known: {error}"]
        differences.append((study.row["name"], changes))
    maximize = first["direction"] == "maximize"
    portions = summarise_best(scores, maximize=maximize) if has_one else pl.DataFrame()
    return {
        "sides": [
            {"name": study.row["name"], "status": read_status(reader, study.row["name"]), "note": sample.note}
            for study, sample in zip(stored, samples, strict=True)
        ],
        "same_objective": has_one,
        "chart": draw_curves(lines, ("trial", first["objective"]), "best so far", steps=True) if lines else None,
        "portions": [portion.to_dicts() for portion in portions.partition_by("portion")] if portions.height else [],
        "differences": differences,
    }
