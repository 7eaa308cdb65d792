"""The figures of a study's report, drawn one at a time."""

from __future__ import annotations

import threading
from typing import Annotated

from fastapi import APIRouter, Path, Response

from graft.report.data import StudyData
from graft.report.figures import draw_figures, figure_kinds
from graft.report.rendering.document import Picture
from graft.report.study import read
from graft.web.reading import OpenReader, OpenStudy
from graft.web.security.refusals import RefusalError
from spaces.errors import StudyError
from storage.frames import Reader
from storage.frames.study import StudyReader

router = APIRouter(tags=["figures"], prefix="/studies/{study}/figures")

Kind = Annotated[str, Path(pattern=r"^[a-z0-9_]{1,60}$", description="A section of the report, such as `dropout`.")]
_INLINE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_drawing = threading.Lock()
"""One drawing at a time, as matplotlib's settings are those of the process."""


@router.get("")
def list_figures(stored: OpenStudy, reader: OpenReader) -> list[str]:
    """Return the kinds of figures that the study has."""
    return figure_kinds(read_report(stored, reader))


@router.get("/{kind}")
def show_figures(stored: OpenStudy, kind: Kind, reader: OpenReader) -> list[Picture]:
    """Return all figures of a kind."""
    return draw(read_report(stored, reader), kind)


@router.get("/{kind}/{index}.svg", response_class=Response, responses={200: {"content": {"image/svg+xml": {}}}})
def send_figure(
    stored: OpenStudy, kind: Kind, index: Annotated[int, Path(ge=1, le=100)], reader: OpenReader
) -> Response:
    """Return one figure of a kind, counted from 1."""
    pictures = draw(read_report(stored, reader), kind)
    if index > len(pictures):
        raise RefusalError(404, f"figure {kind} has {len(pictures)} pictures, not {index}")
    svg = f'<?xml version="1.0" encoding="utf-8"?>\n{pictures[index - 1].svg}\n'
    return Response(svg, media_type="image/svg+xml", headers=_INLINE)


def read_report(stored: StudyReader, reader: Reader) -> StudyData:
    """Return the data of a study's report, without those that only code of the study can read."""
    return read(reader, stored.row["name"], runs_code=False)


def draw(data: StudyData, kind: str) -> list[Picture]:
    """Return the figures of a kind, by Graft's own sections alone; refused with 404 without any."""
    with _drawing:
        try:
            return draw_figures(data, kind)
        except StudyError as error:
            raise RefusalError(404, str(error)) from None
