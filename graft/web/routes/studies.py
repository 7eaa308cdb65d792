"""The studies, and where each of them stands."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from graft.stored.status import read_status
from graft.stored.studies import read_studies
from graft.web.models import INTERNAL, StudyRow, StudyStatus, WorkerRow
from graft.web.reading import OpenReader, OpenStudy

router = APIRouter(tags=["studies"])

Tag = Annotated[str | None, Query(max_length=60, description="Only those that have this tag.")]


@router.get("/studies")
def list_studies(
    reader: OpenReader,
    archived: Annotated[bool, Query(description="Those in the archive too.")] = True,
    tag: Tag = None,
) -> list[StudyRow]:
    """Return every study, oldest first."""
    rows = read_studies(reader, archived=archived, tag=tag).iter_rows(named=True)
    return [StudyRow({**row, "tags": row["tags"].split()}) for row in rows]


@router.get("/studies/{study}")
def show_study(stored: OpenStudy, reader: OpenReader) -> StudyStatus:
    """Return where a study stands: trials by state, the best one, rates, workers, changes."""
    status = read_status(reader, stored.row["name"])
    return StudyStatus(status=status, eta_seconds=status.eta_seconds)


@router.get("/studies/{study}/workers")
def list_workers(stored: OpenStudy) -> list[WorkerRow]:
    """Return the workers that trained for a study, in all its launches."""
    return [WorkerRow(row) for row in stored.workers().drop(INTERNAL).iter_rows(named=True)]
