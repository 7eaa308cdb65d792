"""The report of a compatibility matrix in every format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from graft.files import check_ending, write_rows, writing
from graft.report.compatibility import heatmap, latex, page
from graft.report.compatibility.content import Transfer, caption, conclusions, opening, title
from graft.report.nonlinearities.content import HEADING, table
from graft.report.nonlinearities.learned import Learned
from graft.report.rendering import markdown
from graft.report.rendering.document import Block, Document, Heading, Picture, Table
from graft.report.rendering.drawing import save


def render(transfer: Transfer, path: Path, learned: Learned | None = None) -> None:
    """Write the report in the format of the path's ending; OutputError for one not in ENDINGS.

    `learned`: the non-linearities that trials of the study learned, for html, md and tex.
    """
    check_ending(path, ENDINGS)
    with writing(path):
        _WRITERS[path.suffix](transfer, learned, path)


def _markdown(transfer: Transfer, learned: Learned | None, path: Path) -> None:
    matrix = transfer.matrix
    rows: list[list[str]] = []
    for source in matrix.sources:
        cells = (transfer.cells[source, target] for target in matrix.targets)
        shown = (f"{cell.text} ({cell.interval})" if cell.interval else cell.text for cell in cells)
        rows.append([source, *shown])
    sources: list[Block] = [Heading(text=HEADING), table(learned)] if learned else []
    blocks = [
        *opening(transfer),
        Table(caption=caption(transfer), header=["Source", *matrix.targets], rows=rows),
        Picture(number=1, caption=caption(transfer), svg=heatmap.svg(transfer)),
        *sources,
        *conclusions(transfer),
    ]
    markdown.write(Document(title=title(transfer), blocks=blocks), path)


def _latex(transfer: Transfer, learned: Learned | None, path: Path) -> None:
    latex.write(transfer, path)
    if learned:
        shown = table(learned)
        lines = ["", r"\begin{table}", r"\centering", rf"\caption{{{latex.escape(shown.caption)}}}"]
        columns = "l" * shown.labels + "r" * (len(shown.header) - shown.labels)
        lines += [rf"\begin{{tabular}}{{{columns}}}"]
        header, *rows = (latex.row(map(latex.escape, row)) for row in (shown.header, *shown.rows))
        lines += [r"\toprule", header, r"\midrule", *rows]
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


_WRITERS: Mapping[str, Callable[[Transfer, Learned | None, Path], object]] = {
    ".html": page.write,
    ".md": _markdown,
    ".tex": _latex,
    ".csv": lambda transfer, _, path: write_rows(transfer.matrix.cells, path),
    ".parquet": lambda transfer, _, path: transfer.matrix.cells.write_parquet(path),
    **dict.fromkeys((".png", ".svg", ".pdf"), lambda transfer, _, path: save(heatmap.svg(transfer), path)),
}
ENDINGS = tuple(_WRITERS)
"""The endings of files that a matrix can be written to."""
