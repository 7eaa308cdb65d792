"""Whole frames of a study as parquet, as `graft.connect` reads them."""

from __future__ import annotations

import io
from typing import Annotated, Any

import polars as pl
from fastapi import APIRouter, Query, Response

from graft.stored.studies import read_studies
from graft.stored.trials import StudyTable, read_table
from graft.web.charts.conditions import check_condition, check_order
from graft.web.reading import OpenReader, OpenStudy
from graft.web.routes.studies import Tag
from graft.web.routes.trials import Sort, Where
from spaces.bounds import MOST_TRIALS

router = APIRouter(tags=["frames"])

_MEDIA = "application/vnd.apache.parquet"
_PARQUET: dict[int | str, dict[str, Any]] = {200: {"content": {_MEDIA: {}}}}


@router.get("/studies.parquet", response_class=Response, responses=_PARQUET)
def send_studies(reader: OpenReader, archived: bool = True, tag: Tag = None) -> Response:
    """Return `Database.studies`: one row per study."""
    return _send(read_studies(reader, archived=archived, tag=tag))


@router.get("/studies/{study}/frames/{table}", response_class=Response, responses=_PARQUET)
def send_frame(
    stored: OpenStudy,
    reader: OpenReader,
    table: StudyTable,
    where: Where = None,
    sort: Sort = None,
    top: Annotated[int | None, Query(ge=1, le=MOST_TRIALS)] = None,
    name: Annotated[list[str] | None, Query(max_length=20)] = None,
) -> Response:
    """Return a frame of `graft.Study`; `where`, `sort` and `top` choose trials, `name` metrics."""
    condition, order = check_condition(where), check_order(sort)
    return _send(read_table(reader, stored.row["name"], table, condition, order, top, name))


def _send(frame: pl.DataFrame) -> Response:
    file = io.BytesIO()
    frame.write_parquet(file)
    return Response(file.getvalue(), media_type=_MEDIA)
