"""A study's tables as files, as `search export` writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from graft.stored.export import write_table
from graft.web.charts.conditions import check_condition, check_order
from graft.web.reading import OpenReader, OpenStudy
from graft.web.routes.trials import Sort, Where
from graft.web.security.refusals import RefusalError

router = APIRouter(tags=["export"], prefix="/studies/{study}/export")

_MEDIA = {"csv": "text/csv; charset=utf-8", "json": "application/json", "parquet": "application/vnd.apache.parquet"}
_PART = 1 << 18
"""Bytes that are sent at once."""


@router.get("/{table}.{form}", response_class=StreamingResponse)
def export_table(
    stored: OpenStudy,
    table: Literal["trials", "metrics"],
    form: Literal["csv", "json", "parquet"],
    reader: OpenReader,
    where: Where = None,
    sort: Sort = None,
) -> StreamingResponse:
    """Return all trials, params as columns, or those of a condition; or all metrics of one moment.

    The table is written to a file first: a client that reads slowly would otherwise hold the
    database at one moment, whose log grows meanwhile, and a table that cannot be written is an
    error, not half a file.
    """
    if table == "metrics" and (where or sort):
        raise RefusalError(400, "where and sort choose trials; metrics are exported whole")
    condition, order = check_condition(where), check_order(sort)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when all of it is sent
    try:
        write_table(reader, stored.row["name"], table, form, file, condition, order)
    except BaseException:
        file.close()
        raise
    headers = {
        "Content-Disposition": f'attachment; filename="{stored.row["name"]}.{table}.{form}"',
        "Content-Length": str(file.tell()),
    }
    file.seek(0)

    def read_parts() -> Iterator[bytes]:
        with file:
            while part := file.read(_PART):
                yield part

    return StreamingResponse(read_parts(), media_type=_MEDIA[form], headers=headers)
