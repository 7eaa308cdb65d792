"""The pages of a study as it runs, and of a trial."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import polars as pl
import yaml
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from graft.files import cell
from graft.launching.progress_text import describe_time_left, duration
from graft.stored.params import PARAMS_PREFIX, spell_param
from graft.stored.status import read_running, read_status
from graft.stored.studies import describe_objective, has_arms, name_objective
from graft.stored.trials import read_lineage
from graft.web.callers import find_entry
from graft.web.charts.arms import ArmsView, view_arms
from graft.web.charts.ranges import Ranges
from graft.web.charts.sampling import Sample, numeric_params, read_sample
from graft.web.charts.specs import Line, draw_curves, draw_effects
from graft.web.charts.study_charts import StudyCharts
from graft.web.events import describe_standing
from graft.web.models import TrialDetails
from graft.web.reading import STRANGE, Number, OpenReader, OpenStudy, refuse, settings_of
from graft.web.rendering import render, stream
from graft.web.routes.matrices import view_matrix
from graft.web.routes.trials import show_trial
from graft.web.security.refusals import log_refusal
from search.analysis.study.associations import FEWEST, rank_associations
from search.analysis.study.best_trials import summarise_best
from spaces.errors import GraftError, StudyError
from spaces.experiment import CONFIGURATION, RANK, SEED
from spaces.reading.transfer_section import has_one_objective, is_transfer_text
from spaces.records import describe_constraints
from spaces.settings import list_leaves
from storage.frames import Reader
from storage.frames.columns import POINTS
from storage.frames.study import StudyReader

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_CURVES = 5
"""Trials whose learning curves are shown where none is chosen."""
_MOST_CURVES = 16
_LANES = 256
"""Running trials that are shown."""
_ROWS = 10
"""Best trials, and errors, that are listed."""
_AXES = 7
"""Values that have an axis of parallel coordinates, and a slice."""
_STRONGEST = 20
"""Values whose association with the objective is drawn."""
_MOST_OF_MATRIX = 5_000
"""Trials of a transfer whose matrix is on the study's page."""

_PLACES = (SEED, CONFIGURATION, RANK)
"""Values that tell the trials of an arm apart."""

Chosen = Annotated[str, Query(pattern=r"^[0-9, ]{0,200}$")]


def read_ranges(request: Request) -> Ranges:
    """Return the ranges that the address has."""
    return Ranges.parse(request.query_params.multi_items())


ChosenRanges = Annotated[Ranges, Depends(read_ranges)]


@router.get("/studies/{study}")
def show_study(
    stored: OpenStudy, reader: OpenReader, request: Request, ranges: ChosenRanges, trials: Chosen = ""
) -> StreamingResponse:
    """Return a study's page: its lower part is refreshed at each change, its figures come last."""
    row, holder = stored.row, request.state.holder
    return stream(
        "study",
        title=f"Study {row['name']}",
        row=row,
        goal=" and ".join(filter(None, (describe_objective(row), row["second_objective"]))),
        tags=" ".join(json.loads(row["tags"])),
        has_nonlinearities=stored.architectures.exist(),
        trials=trials,
        ranges=ranges,
        may_change=holder.may("submit"),
        may_delete=holder.may("admin"),
        **_read_live(stored, reader, request, ranges, trials),
    )


@router.get("/studies/{study}/live")
def show_live(
    stored: OpenStudy, reader: OpenReader, request: Request, ranges: ChosenRanges, trials: Chosen = ""
) -> HTMLResponse:
    """Return the part of a study's page that changes."""
    return render("live", **_read_live(stored, reader, request, ranges, trials))


def _read_live(stored: StudyReader, reader: Reader, request: Request, ranges: Ranges, trials: str) -> dict[str, Any]:
    def draw() -> Mapping[str, Any]:
        """Return the figures, or a refusal in their place, as the page has begun already."""
        try:
            return _draw_figures(stored, reader, trials, ranges)
        except (GraftError, *STRANGE) as error:
            refusal = refuse(error, settings_of(request).database)
            log_refusal(refusal, request.scope)
            return {"refusal": refusal.reason}

    name: str = stored.row["name"]
    status = read_status(reader, name)
    columns = ("number", "state", "error")
    problems = stored.trials("error IS NOT NULL", "number DESC", _ROWS, columns)
    is_experiment = has_arms(stored)
    is_single = status.progress.best is not None and not is_experiment
    return {
        "name": name,
        "status": status,
        "told": describe_standing(status.state, status.progress.planned, status.progress.counts),
        "has_arms": is_experiment,
        "is_transfer": is_transfer_text(stored.row["space"]),
        "tenth": _read_tenth(stored) if is_single else None,
        "started": stored.row["created_at"],
        "seconds": None if status.seconds is None else duration(status.seconds),
        "running": read_running(reader, stored.row, _LANES).partition_by("worker", as_dict=True),
        "eta": status.progress.time_left and describe_time_left(status.progress.time_left),
        "problems": problems.to_dicts(),
        "entry": find_entry(reader, name),
        "draw": draw,
    }


def _read_tenth(stored: StudyReader) -> dict[str, Any] | None:
    """Return the mean of the best tenth with its margin; None of trials too few for an interval."""
    maximize = stored.row["direction"] == "maximize"
    summary = summarise_best({stored.row["name"]: stored.scores()}, maximize=maximize)
    tenth = summary.filter(portion="best 10 %").drop_nulls("margin")
    return next(tenth.iter_rows(named=True), None)


def _draw_figures(stored: StudyReader, reader: Reader, chosen: str, ranges: Ranges) -> Mapping[str, Any]:
    """Return the study's figures, or `lacking`, the trials that they are waiting for."""
    sample = read_sample(stored)
    if sample.trials.is_empty():
        return {"lacking": _name_lacking(stored)}
    has_matrix = 0 < stored.count_numbers() <= _MOST_OF_MATRIX
    whole = {"arms": _view_arms(reader, stored), "matrix": view_matrix(reader, stored) if has_matrix else None}
    is_ranked = has_one_objective(stored.row["space"])
    return whole | _draw_sample(stored, sample, chosen, ranges) if is_ranked else whole


def _draw_sample(stored: StudyReader, sample: Sample, chosen: str, ranges: Ranges) -> dict[str, Any]:
    """Return the figures of a sample of the study's trials, which one objective ranks."""
    maximize = stored.row["direction"] == "maximize"
    best = sample.trials.sort("objective", descending=maximize, maintain_order=True)
    kept = ranges.keep(best)
    numbers = [int(word) for word in re.findall(r"\d{1,9}", chosen)][:_MOST_CURVES]
    # The place of a trial in an experiment says nothing that holds for another one.
    columns = [name for name in sample.trials.columns if name.startswith(PARAMS_PREFIX)]
    columns = [name for name in columns if name.removeprefix(PARAMS_PREFIX) not in _PLACES]
    value = pl.col("value").str.strip_prefix(PARAMS_PREFIX)
    associations = rank_associations(sample.trials, columns).with_columns(value)
    # Values of too few trials to tell anything have axes after the others.
    differing = (name for name in columns if best[name].drop_nulls().n_unique() > 1)
    varied = (name.removeprefix(PARAMS_PREFIX) for name in differing)
    paths = [*dict.fromkeys([*associations["value"], *varied])][:_AXES]
    charts = StudyCharts(study=stored, trials=best, paths=paths, ranges=ranges, kept=kept)
    shown = best.filter(kept)
    best_paths = [path for path in paths if shown[PARAMS_PREFIX + path].head(_ROWS).count()]
    curves, curve_numbers = charts.curves(numbers or shown["number"].head(_CURVES).to_list())
    trials = pl.col("trials").map_elements(lambda count: f"{count:,} trials", pl.String)
    strengths = associations.head(_STRONGEST).select("value", "strength", "low", "high", trials)
    title = f"what goes with {stored.row['objective']}, with 95 % intervals"
    numeric = {name.removeprefix(PARAMS_PREFIX) for name in numeric_params(best)}
    return {
        "chosen": chosen,
        "frames": json.dumps(charts.frames(), allow_nan=False, separators=(",", ":")),
        "ranges": ranges,
        "sample_note": sample.note,
        "history": charts.history(),
        "curves": curves,
        "curve_numbers": curve_numbers,
        "importances": draw_effects(strengths, "strength, 0 to 1", title, from_zero=False),
        "told_apart": associations.filter(pl.col("low") > 0)["value"].to_list(),
        "not_told": associations.filter(pl.col("low").fill_null(0) == 0)["value"].to_list(),
        "fixed": _list_fixed(stored, sample),
        "parallel": charts.parallel(),
        "slices": charts.slices(),
        "front": charts.front(),
        "range_paths": [*(path for path in paths if path in numeric), "objective"],
        "kept": shown.height,
        "of": best.height,
        "best_paths": best_paths,
        "fewest": FEWEST,
        "best_rows": [
            {**row, "values": [row[PARAMS_PREFIX + path] for path in best_paths]}
            for row in shown.head(_ROWS).iter_rows(named=True)
        ],
    }


def _name_lacking(stored: StudyReader) -> str:
    """Return the words for the trials that a study without a figure is waiting for."""
    broken = stored.trials("feasible IS FALSE", "number", 1, ("number",))
    return "feasible trial" if broken.height else "trial"


def _view_arms(reader: Reader, stored: StudyReader) -> ArmsView | None:
    """Return the arms of an experiment against its first one; None where that has no result yet."""
    try:
        return view_arms(reader, [stored.row["name"]]) if has_arms(stored) else None
    except StudyError:
        return None


def _list_fixed(stored: StudyReader, sample: Sample) -> list[tuple[str, str]]:
    """Return the values of the configuration that are the same in all trials of the sample."""
    trials = sample.trials
    config: Mapping[str, Any] = json.loads(stored.trials(f"number = {trials['number'][0]}", columns=("config",)).item())
    columns = (name for name in trials.columns if name.startswith(PARAMS_PREFIX))
    varied = [name.removeprefix(PARAMS_PREFIX) for name in columns if trials[name].n_unique() > 1]
    paths = {f"{path}{end}" for path in varied for end in ("", ".name")}
    return [(path, cell(value)) for path, value in list_leaves(config) if path not in paths]


@router.get("/studies/{study}/trials/{number}")
def show_one_trial(stored: OpenStudy, number: Number, reader: OpenReader, request: Request) -> HTMLResponse:
    """Return the page of a trial: what it is, how it went, and where it comes from."""
    name: str = stored.row["name"]
    details = show_trial(stored, number, reader)
    trial, sample = details.trial.root, read_sample(stored)
    best, rank = _rank_trial(stored, trial, sample.trials)
    notes = stored.trial_notes().filter(number=number)
    said = next(notes.iter_rows(named=True), {"starred": False, "tags": "", "note": ""})
    return render(
        "trial",
        title=f"Trial {number} of {name}",
        name=name,
        objective=name_objective(stored.row, trial["params"]),
        trial=trial,
        said=said,
        may_change=request.state.holder.may("submit"),
        constraints=describe_constraints(trial["constraints"]),
        lineage=read_lineage(reader, name, number)[:0:-1],
        replay=details.replay,
        charts=list(_draw_metrics(details)),
        best=best["number"].item() if best.height else None,
        sample_note=sample.note,
        rank=rank,
        params=_list_params(trial["params"], sample.trials, best),
        config=yaml.safe_dump(details.config, sort_keys=True, allow_unicode=True),
    )


def _rank_trial(stored: StudyReader, trial: Mapping[str, Any], trials: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the row of the best of the trials, and how a trial ranks among them, in words.

    The frame has no row and the words are empty where trials have objectives of their own tasks.
    """
    if not has_one_objective(stored.row["space"]):
        return trials.clear(), ""
    maximize = stored.row["direction"] == "maximize"
    best = trials.sort("objective", descending=maximize).head(1)
    others, objective = trials["objective"], trial["objective"]
    if objective is None or trial["feasible"] is False or others.n_unique() < 2:
        return best, ""
    worse = (others < objective if maximize else others > objective).sum()
    return best, f"better than {100 * worse / others.len():.0f} % of the trials"


def _list_params(params: Mapping[str, Any], trials: pl.DataFrame, best: pl.DataFrame) -> list[dict[str, str]]:
    """Return what was drawn beside the best trial and all others; values that differ come first."""
    rows: list[dict[str, str]] = []
    for path, value in params.items():
        column = PARAMS_PREFIX + path
        known = trials[column].drop_nulls() if column in trials.columns else pl.Series([], dtype=pl.Null)
        of_best = best[column].item() if known.len() and best.height else None
        spelled = spell_param(value, known)
        differs = "yes" if best.height and spelled != of_best else ""
        rank = ""
        if value is not None and known.n_unique() > 1:
            sign, same = ("above", known < value) if known.dtype.is_numeric() else ("same as", known == spelled)
            rank = f"{sign} {100 * same.sum() / known.len():.0f} %"
        elif value is not None and known.len():
            rank = "all alike"
        rows.append({"path": path, "differs": differs, "value": cell(value), "best": cell(of_best), "place": rank})
    return sorted(rows, key=lambda row: not row["differs"])


def _draw_metrics(details: TrialDetails) -> Iterator[dict[str, Any]]:
    """Yield a chart for each metric, with a line for each variant and condition."""
    metrics = pl.DataFrame([vars(point) for point in details.metrics], POINTS).drop_nulls()
    for (name,), points in metrics.group_by("name", maintain_order=True):
        lines = [
            Line(" ".join(filter(None, map(str, key))), curve["step"].to_list(), curve["value"].to_list())
            for key, curve in points.group_by("variant", "condition", maintain_order=True)
        ]
        chart = draw_curves(lines, ("step", str(name)), f"{name} over the steps")
        yield {"name": name, "chart": chart}
