"""The report of a compatibility matrix: which architecture helps or hurts on which task, in every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from cli.options import OptionError
from cli.report import heatmap, latex, markdown, transfer_html
from cli.report.compatibility import Transfer, caption, conclusions, opening, title
from cli.report.document import Document, Picture, Table
from cli.tables import writing


def render(transfer: Transfer, path: Path) -> None:
    """Write the report to `path` in the format of its ending, one of ENDINGS; OptionError for another one."""
    if path.suffix not in ENDINGS:
        raise OptionError(f"{path}: the ending must be one of {', '.join(ENDINGS)}")
    with writing(path):
        _WRITERS[path.suffix](transfer, path)


def _markdown(transfer: Transfer, path: Path) -> None:
    matrix = transfer.matrix
    rows = [[source, *(transfer.cells[source, target].text for target in matrix.targets)] for source in matrix.sources]
    blocks = [
        *opening(transfer),
        Table(caption=caption(transfer), header=["Source", *matrix.targets], rows=rows),
        Picture(number=1, caption=caption(transfer), svg=heatmap.svg(transfer)),
        *conclusions(transfer),
    ]
    markdown.write(Document(title=title(transfer), blocks=blocks), path)


_WRITERS: Mapping[str, Callable[[Transfer, Path], object]] = {
    ".html": transfer_html.write,
    ".md": _markdown,
    ".tex": latex.write,
    ".csv": lambda transfer, path: transfer.matrix.cells.write_csv(path),
    ".parquet": lambda transfer, path: transfer.matrix.cells.write_parquet(path),
    ".png": heatmap.write,
    ".svg": heatmap.write,
}
ENDINGS = tuple(_WRITERS)
"""The endings of files that a matrix can be written to."""
