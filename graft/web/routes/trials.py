"""Trials and their metrics, some at a time."""

from __future__ import annotations

import shlex
from typing import Annotated

import polars as pl
from fastapi import APIRouter, Query

from graft.stored.params import StoredParams
from graft.stored.trials import LISTED, read_trial
from graft.web.charts.conditions import LONGEST, check_condition, check_order
from graft.web.models import MetricPage, MetricRow, Point, TrialDetails, TrialPage, TrialRow
from graft.web.reading import Number, OpenReader, OpenStudy
from graft.web.security.refusals import RefusalError
from spaces.bounds import MOST_TRIALS
from spaces.errors import StudyError

router = APIRouter(tags=["trials"])

MOST_ROWS = 1_000
"""Trials of one page."""
MOST_WITH_METRICS = 100
"""Trials whose metrics are one page."""

Cursor = Annotated[int, Query(ge=-1, le=MOST_TRIALS, description="The `next` of the page before.")]
Where = Annotated[
    str | None,
    Query(max_length=LONGEST, description="A condition over columns and paths: optimizer.learning_rate > 1e-3."),
]
Sort = Annotated[
    str | None, Query(max_length=LONGEST, description="An order: steps DESC, objective (best first). Default: number.")
]


@router.get("/studies/{study}/trials")
def list_trials(
    stored: OpenStudy,
    where: Where = None,
    sort: Sort = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    cursor: Cursor = -1,
) -> TrialPage:
    """Return a page of trials, by number or by `sort`.

    By number a cursor is exact however the study changes. By `sort` it counts the rows before the
    page, so that trials which end meanwhile can move others from page to page.
    """
    order = check_order(sort)
    after = max(cursor, 0) if order else cursor
    # One row more than is shown says whether there is a next page.
    page = stored.trial_page(check_condition(where), order, after, limit + 1, LISTED)
    shown = page.head(limit)
    following = (after + limit if order else shown["number"][-1]) if page.height > limit else None
    rows = [TrialRow(row) for row in StoredParams(stored).decode(shown)]
    return TrialPage(trials=rows, next=following)


@router.get("/studies/{study}/trials/{number}")
def show_trial(stored: OpenStudy, number: Number, reader: OpenReader) -> TrialDetails:
    """Return one trial with its configuration, its draws and its metrics."""
    name: str = stored.row["name"]
    try:
        row, metrics = read_trial(reader, name, number)
    except StudyError as error:
        raise RefusalError(404, str(error)) from None
    return TrialDetails(
        trial=TrialRow({column: row[column] for column in LISTED}),
        draws=row["draws"],
        config=row["config"],
        metrics=[Point(**point) for point in metrics.iter_rows(named=True)],
        replay=f"search replay {shlex.quote(name)} {number}",
    )


@router.get("/studies/{study}/metrics")
def list_metrics(
    stored: OpenStudy,
    name: Annotated[list[str] | None, Query(max_length=20, description="Only these metrics; repeatable.")] = None,
    trials: Annotated[int, Query(ge=1, le=MOST_WITH_METRICS, description="Trials of a page.")] = 20,
    cursor: Cursor = -1,
) -> MetricPage:
    """Return metrics by trial, step and name; the cursor is the last trial of the page before."""
    numbers = stored.trial_page(None, None, cursor, trials + 1, ("number",))["number"].to_list()
    shown = numbers[:trials]
    metrics = stored.metrics(name, range(shown[0], shown[-1] + 1)) if shown else pl.DataFrame()
    return MetricPage(
        metrics=[MetricRow(**row) for row in metrics.iter_rows(named=True)],
        next=shown[-1] if len(numbers) > trials else None,
    )
