"""The compatibility matrix of a transfer, and the pairs of one of its cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import polars as pl
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from graft.report.compatibility.content import Transfer
from graft.report.compatibility.reading import MatrixRequest, read_transfer
from graft.report.compatibility.table import draw_matrix
from graft.web.reading import OpenReader, OpenStudy
from graft.web.rendering import render
from graft.web.security.refusals import RefusalError
from search.analysis.transfer.compatibility_matrix import TransferError
from spaces.reading.transfer_section import is_transfer_text
from storage.frames import Reader
from storage.frames.study import StudyReader

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, kw_only=True)
class MatrixView:
    """A matrix as a page shows it, and what it still lacks."""

    transfer: Transfer | None
    missing: str
    """The reason why there is no matrix yet, or some of its pairs are missing; empty if whole."""

    def draw(self, chosen: tuple[str, str] | None) -> Markup:
        """Return the table of a matrix; on its own page one cell is chosen, and its names sort."""
        transfer = self.transfer
        assert transfer

        def address(source: str, target: str) -> str:
            query = urlencode({"source": source, "target": target})
            return f"/studies/{transfer.study}/matrix?{query}#pairs"

        return Markup(draw_matrix(transfer, address, chosen or ("", ""), sorts=chosen is not None))


def view_matrix(reader: Reader, stored: StudyReader) -> MatrixView | None:
    """Return a transfer's matrix; None for other studies, and if its plug-ins do not run here."""
    if not is_transfer_text(stored.row["space"]) or stored.sources().height:
        return None
    return _read(reader, stored)


def _read(reader: Reader, stored: StudyReader) -> MatrixView:
    try:
        transfer, _ = read_transfer(reader, stored.row["name"], MatrixRequest())
    except TransferError as error:  # the study's page leads here from its start
        return MatrixView(transfer=None, missing=f"There is no matrix yet: {error}.")
    cells = transfer.matrix.cells
    most: Any = cells["pairs"].max() or 0
    pairs = pl.col("pairs")
    empty, fewer = (cells.filter(condition).height for condition in (pairs == 0, pairs < most))
    if not fewer:
        return MatrixView(transfer=transfer, missing="")
    clause = f"{empty} of {cells.height} cells have no pair yet" if empty else "every cell has a pair"
    missing = f"{clause}; {fewer} have fewer than {most}, the most of any cell."
    return MatrixView(transfer=transfer, missing=missing)


@router.get("/studies/{study}/matrix")
def show_matrix(
    stored: OpenStudy,
    reader: OpenReader,
    source: Annotated[str, Query(max_length=200)] = "",
    target: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """Return the compatibility matrix of a transfer, and the pairs of one of its cells."""
    name: str = stored.row["name"]
    refuse_own_code(stored)
    view = _read(reader, stored)
    transfer = view.transfer
    return render(
        "matrix",
        title=f"Compatibility matrix of {name}",
        name=name,
        matrix=view,
        cell=transfer and transfer.cells.get((source, target)),
        source=source,
        target=target,
        pairs=transfer.matrix.pairs.filter(source=source, target=target).to_dicts() if transfer else [],
    )


def refuse_own_code(stored: StudyReader) -> None:
    """Refuse what needs the space of a transfer, and so its plug-ins."""
    if stored.sources().height:
        raise RefusalError(403, f"study {stored.row['name']} has plug-ins of its own, whose code does not run here")
