"""The report of learned non-linearities in every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from graft.files import check_ending, write_rows, writing
from graft.report.nonlinearities.content import caption, frame, table, title
from graft.report.nonlinearities.figure import svg
from graft.report.nonlinearities.learned import Learned
from graft.report.rendering import html
from graft.report.rendering.document import Document, Picture
from graft.report.rendering.drawing import save


def render(learned: Learned, path: Path) -> None:
    """Write the report in the format of the path's ending; OutputError for one not in ENDINGS."""
    check_ending(path, ENDINGS)
    with writing(path):
        _WRITERS[path.suffix](learned, path)


def _write_page(learned: Learned, path: Path) -> None:
    blocks = [Picture(number=1, caption=caption(learned), svg=svg(learned)), table(learned)]
    html.write(Document(title=title(learned), blocks=blocks), path)


_WRITERS: Mapping[str, Callable[[Learned, Path], object]] = {
    **dict.fromkeys((".svg", ".png", ".pdf"), lambda learned, path: save(svg(learned), path)),
    ".html": _write_page,
    **dict.fromkeys((".csv", ".parquet", ".json"), lambda learned, path: write_rows(frame(learned), path)),
}
ENDINGS = tuple(_WRITERS)
"""The endings of files that non-linearities can be written to."""
