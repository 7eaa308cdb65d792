"""The report of a compatibility matrix as one HTML file: it sorts, and cells lead to trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from html import escape
from pathlib import Path

import polars as pl

from graft.report.compatibility.cells import change
from graft.report.compatibility.content import Transfer, conclusions, opening, title
from graft.report.compatibility.table import draw_matrix
from graft.report.nonlinearities.content import HEADING, caption, list_drawn, table
from graft.report.nonlinearities.figure import svg
from graft.report.nonlinearities.learned import Learned, Nonlinearity
from graft.report.rendering import html
from graft.report.rendering.document import Block, Paragraph, Picture, Table
from graft.report.rendering.formatting import MISSING, number

_MOST_TRIALS = 200
"""Trials of a cell that its command names."""
_MOST_NAMED = 8
"""Trials of one side of a pair that are listed."""
_MOST_PAIRS = 50
"""Pairs of a cell that are listed."""


def write(transfer: Transfer, learned: Learned | None, path: Path) -> None:
    """Write the report to one file that opens without a network."""
    rows, columns = transfer.matrix.sources, transfer.matrix.targets
    body = [
        *map(html.element, opening(transfer)),
        "<h2>The matrix</h2>",
        "<p>A click on a name sorts by its row or column, one on a cell shows its trials.</p>",
        draw_matrix(transfer, lambda source, target: f"#{_anchor(rows.index(source), columns.index(target))}"),
        *_details(transfer),
        *(_learned_section(learned) if learned else ()),
        *map(html.element, conclusions(transfer)),
    ]
    script = html.MATRIX_SCRIPT.read_text(encoding="utf-8")
    path.write_text(html.page(title(transfer), "\n".join(body), script), encoding="utf-8")


def _anchor(row: int, column: int) -> str:
    return f"cell-{row}-{column}"


def _details(transfer: Transfer) -> Iterable[str]:
    """Yield a section for each cell; the page shows the one that its address names."""
    matrix, study = transfer.matrix, shlex.quote(transfer.study)
    numbers = {
        (str(source), str(target)): rows["number"].to_list()
        for (source, target), rows in transfer.results.sort("number").group_by("source", "target")
    }
    pairs = {
        (str(source), str(target)): rows.sort("seed")
        for (source, target), rows in _pairs(transfer).group_by("source", "target")
    }
    for row, source in enumerate(matrix.sources):
        for column, target in enumerate(matrix.targets):
            blocks: list[Block] = [Paragraph(text=transfer.cells[source, target].details)]
            if (source, target) in pairs:
                blocks.append(_pairs_table(transfer, source, pairs[source, target]))
            details = "\n".join(map(html.element, blocks))
            wanted = numbers.get((source, target), []) + numbers.get((matrix.baseline, target), [])
            command = "<p>It has no trials.</p>"
            if wanted:
                count = len(wanted)
                cut = f" (the first {_MOST_TRIALS} of {number(count)})" if count > _MOST_TRIALS else ""
                listed = ", ".join(map(str, sorted(wanted[:_MOST_TRIALS])))
                line = escape(f'search trials {study} --where "number IN ({listed})"')
                command = f"<p>Its trials and the baseline’s{cut}; a click selects the line:</p>\n"
                command += f"<code>{line}</code>"
            yield _SECTION.format(anchor=_anchor(row, column), details=details, command=command)


_SECTION = """<section class="folded" id="{anchor}">
{details}
{command}
<p><a href="#matrix">Back to the matrix</a></p>
</section>"""


def _pairs(transfer: Transfer) -> pl.DataFrame:
    """Return Matrix.pairs with the numbers of the trials on both sides, as text."""
    named = pl.col("number").sort().head(_MOST_NAMED).cast(pl.String).str.join(", ")
    cut = pl.when(pl.len() > _MOST_NAMED).then(pl.lit(", …")).otherwise(pl.lit(""))
    numbers = transfer.results.group_by("source", "target", "seed").agg(trials=named + cut)
    is_baseline = pl.col("source") == transfer.matrix.baseline
    others = numbers.filter(is_baseline).select("target", "seed", others="trials")
    pairs = transfer.matrix.pairs.join(numbers, on=["source", "target", "seed"], how="left")
    return pairs.join(others, on=["target", "seed"], how="left")


def _pairs_table(transfer: Transfer, source: str, pairs: pl.DataFrame) -> Table:
    rows = [
        [
            str(row["seed"]),
            number(row["value"]),
            number(row["against"]),
            change(row["change"], 2),
            row["trials"],
            row["others"] or MISSING,
        ]
        for row in pairs.head(_MOST_PAIRS).iter_rows(named=True)
    ]
    baseline = transfer.matrix.baseline
    header = [transfer.paths.pair, source, baseline, "change", f"trials of {source}", f"trials of {baseline}"]
    cut = f", the first {_MOST_PAIRS} of {number(pairs.height)}" if pairs.height > _MOST_PAIRS else ""
    return Table(caption=f"{transfer.objective} by {transfer.paths.pair}{cut}", header=header, rows=rows)


def _learned_section(learned: Learned) -> Iterable[str]:
    """Yield the figure and table of the non-linearities; trials link to sections, as cells do."""
    yield f'<h2 id="learned">{escape(HEADING)}</h2>'
    yield html.element(Picture(number=1, caption=caption(learned), svg=svg(learned)))
    # In each row the first cell that is no label, the trial's number, leads to its section.
    before, header, *rows = html.element(table(learned)).split("<tr>")
    cell = '<td class="n">{}</td>'.format
    linked = [
        row.replace(cell(spline.number), cell(f'<a href="#{_origin_anchor(spline)}">{spline.number}</a>'), 1)
        for row, spline in zip(rows, list_drawn(learned), strict=True)
    ]
    yield "<tr>".join([before, header, *linked])
    study = shlex.quote(learned.study)
    for spline in list_drawn(learned):
        yield _ORIGIN.format(
            anchor=_origin_anchor(spline),
            origin=escape(f"Trial {spline.number} learned this non-linearity ({spline.component}) on {spline.task}."),
            show=escape(f"search show {study} {spline.number}"),
            used=escape(f'search trials {study} --where "architecture_id = {spline.id}"'),
        )


def _origin_anchor(spline: Nonlinearity) -> str:
    return f"architecture-{spline.id}"


_ORIGIN = """<section class="folded" id="{anchor}">
<p>{origin} A click selects the line:</p>
<code>{show}</code>
<p>The trials that were trained with it:</p>
<code>{used}</code>
<p><a href="#learned">Back to the figure</a></p>
</section>"""
