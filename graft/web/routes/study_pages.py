"""The pages of a study as it runs, and of a trial."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import polars as pl
import yaml
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from graft.files import cell
from graft.launching.progress_text import describe_time_left
from graft.stored.status import read_status
from graft.stored.trials import PARAMS_PREFIX
from graft.web.charts.arms import has_arms, view_arms
from graft.web.charts.ranges import Ranges
from graft.web.charts.sampling import numeric_params, rank_associations, read_sample
from graft.web.charts.specs import Line, draw_curves
from graft.web.charts.study_charts import StudyCharts
from graft.web.events import describe_standing
from graft.web.models import TrialDetails
from graft.web.reading import STRANGE, Number, OpenReader, OpenStudy, refuse_error, refuse_strange, settings_of
from graft.web.rendering import render, stream
from graft.web.routes.trials import show_trial
from graft.web.security.refusals import RefusalError, log_refusal
from spaces.errors import GraftError, StudyError
from spaces.experiment import CONFIGURATION, RANK, SEED
from spaces.reading.transfer_section import is_transfer_text
from spaces.records import describe_constraints
from storage.claims.stored_trials import check_parent
from storage.frames import Reader
from storage.frames.study import StudyReader

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_CURVES = 5
"""Trials whose learning curves are shown where none is chosen."""
_MOST_CURVES = 16
_ROWS = 10
"""Best trials, and errors, that are listed."""
_AXES = 7
"""Values that have an axis of parallel coordinates, and a slice."""

_PLACES = (SEED, CONFIGURATION, RANK)
"""Values that tell the trials of an arm apart."""

Draw = Callable[[], Mapping[str, Any]]
Chosen = Annotated[str, Query(pattern=r"^[0-9, ]{0,200}$")]


def read_ranges(request: Request) -> Ranges:
    """Return the ranges that the address has."""
    return Ranges.parse(request.query_params.multi_items())


ChosenRanges = Annotated[Ranges, Depends(read_ranges)]


@router.get("/studies/{study}")
def show_study(
    stored: OpenStudy, reader: OpenReader, request: Request, ranges: ChosenRanges, trials: Chosen = ""
) -> StreamingResponse:
    """Return a study, whose lower part is refreshed whenever something changes; its figures come after the rest."""
    row = stored.row
    return stream(
        "study",
        title=f"Study {row['name']}",
        direction=row["direction"],
        is_transfer=is_transfer_text(row["space"]),
        has_nonlinearities=stored.architectures.exist(),
        chosen=trials,
        ranges=ranges,
        **_read_live(stored, reader, request, partial(_draw_sample, stored, reader, trials, ranges)),
    )


@router.get("/studies/{study}/arms")
def compare_arms(
    stored: OpenStudy, reader: OpenReader, baseline: Annotated[str | None, Query(max_length=200)] = None
) -> HTMLResponse:
    """Return the arms of an experiment against any of them."""
    name: str = stored.row["name"]
    if not has_arms(stored):
        raise RefusalError(404, f"study {name} has no arms; a space with arms: or seeds: makes such studies")
    try:
        arms = view_arms(reader, name, baseline)
    except StudyError as error:
        raise RefusalError(404, str(error)) from None
    return render("compare_arms", title=f"Arms of {name}", name=name, arms=arms)


@router.get("/studies/{study}/live")
def show_live(
    stored: OpenStudy, reader: OpenReader, request: Request, ranges: ChosenRanges, trials: Chosen = ""
) -> HTMLResponse:
    """Return the part of a study's page that changes."""
    return render("live", **_read_live(stored, reader, request, partial(_draw_sample, stored, reader, trials, ranges)))


def _read_live(stored: StudyReader, reader: Reader, request: Request, draw: Draw) -> dict[str, Any]:
    name: str = stored.row["name"]
    status = read_status(reader, name)
    problems = stored.trials("error IS NOT NULL", "number DESC", _ROWS, ("number", "state", "error"))
    return {
        "name": name,
        "objective": status.progress.objective,
        "status": status,
        "told": describe_standing(status.state, status.progress.planned, status.progress.counts),
        "has_arms": has_arms(stored),
        "eta": status.progress.time_left and describe_time_left(status.progress.time_left),
        "problems": problems.to_dicts(),
        "entry": next((entry for entry in reader.queue() if entry.study == name), None),
        "draw": partial(_draw_or_refuse, draw, reader.database.name, request),
    }


def _draw_or_refuse(draw: Draw, database: str, request: Request) -> Mapping[str, Any]:
    """Return the drawing, or a refusal in its place, as the page has begun already."""
    try:
        return draw()
    except (GraftError, *STRANGE) as error:
        is_ours = isinstance(error, GraftError)
        url = settings_of(request).database
        refusal = refuse_error(error, database) if is_ours else refuse_strange(error, url, database)
        log_refusal(refusal, request.scope)
        return {"refusal": refusal.reason}


def _draw_sample(stored: StudyReader, reader: Reader, chosen: str, ranges: Ranges) -> Mapping[str, Any]:
    """Return the figures of a sample of the study's trials; empty: none has a result yet."""
    sample = read_sample(stored)
    if sample.trials.is_empty():
        return {}
    best = sample.trials.sort("objective", descending=stored.row["direction"] == "maximize", maintain_order=True)
    kept = ranges.keep(best)
    numbers = [int(word) for word in re.findall(r"\d{1,9}", chosen)][:_MOST_CURVES]
    # Which of an experiment's trials one is says nothing that holds for another.
    associations = [pair for pair in rank_associations(sample.trials) if pair[0] not in _PLACES]
    paths = [path for path, _ in associations[:_AXES]]
    charts = StudyCharts(study=stored, trials=best, paths=paths, ranges=ranges, kept=kept)
    shown = best.filter(kept)
    curves, curve_numbers = charts.curves(numbers or shown["number"].head(_CURVES).to_list())
    numeric = {name.removeprefix(PARAMS_PREFIX) for name in numeric_params(best)}
    return {
        "arms": view_arms(reader, stored.row["name"]) if has_arms(stored) else None,
        "frames": json.dumps(charts.frames(), allow_nan=False, separators=(",", ":")),
        "ranges": ranges,
        "sample_note": sample.note,
        "history": charts.history(),
        "curves": curves,
        "curve_numbers": curve_numbers,
        "associations": associations,
        "parallel": charts.parallel(),
        "slices": charts.slices(),
        "front": charts.front(),
        "range_paths": [*(path for path in paths if path in numeric), "objective"],
        "kept": shown.height,
        "of": best.height,
        "best_paths": paths,
        "best_rows": [_best_row(row, paths) for row in shown.head(_ROWS).iter_rows(named=True)],
    }


def _best_row(row: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    values = [cell(row[PARAMS_PREFIX + path]) for path in paths]
    return {"number": row["number"], "state": row["state"], "objective": row["objective"], "values": values}


@router.get("/studies/{study}/trials/{number}")
def show_one_trial(stored: OpenStudy, number: Number, reader: OpenReader) -> HTMLResponse:
    """One trial: what it is, how it went, and where it comes from."""
    found = show_trial(stored, number, reader)
    trial = found.trial
    return render(
        "trial",
        title=f"Trial {number} of {stored.row['name']}",
        name=stored.row["name"],
        objective=stored.row["objective"],
        trial=trial,
        constraints=describe_constraints(trial.constraints),
        lineage=list(_follow_parents(stored, number, trial.parent, trial.parent_step)),
        replay=found.replay,
        charts=list(_draw_metrics(found)),
        params=[(path, cell(value)) for path, value in trial.params.items()],
        config=yaml.safe_dump(found.config, sort_keys=True, allow_unicode=True),
    )


def _follow_parents(
    stored: StudyReader, number: int, parent: int | None, step: int | None
) -> Iterator[tuple[int, int]]:
    """Yield the trials whose state one took over, the last one first, each with the step at which it did."""
    while parent is not None and step is not None:
        check_parent(number, parent)
        yield parent, step
        found = stored.trials(f"number = {parent}", columns=("parent", "parent_step"))
        number = parent
        parent, step = found.row(0) if found.height else (None, None)


def _draw_metrics(found: TrialDetails) -> Iterator[dict[str, Any]]:
    """Yield a chart for each metric, with a line for each variant and condition."""
    metrics = pl.DataFrame([vars(point) for point in found.metrics]).drop_nulls() if found.metrics else pl.DataFrame()
    if metrics.is_empty():
        return
    for (name,), own in metrics.group_by("name", maintain_order=True):
        lines = [
            Line(" ".join(filter(None, map(str, key))), one["step"].to_list(), one["value"].to_list())
            for key, one in own.group_by("variant", "condition", maintain_order=True)
        ]
        chart = draw_curves(lines, ("step", str(name)), f"{name} over the steps")
        yield {"name": name, "chart": chart}
