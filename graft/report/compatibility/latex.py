"""The compatibility matrix as a LaTeX table (package booktabs)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from graft.report.compatibility.cells import MARK
from graft.report.compatibility.content import Transfer, caption
from graft.report.rendering.formatting import plain
from search.analysis.transfer.affinity import best_sources

_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "−": "$-$",
        "–": "--",
        "→": r"$\rightarrow$",
    }
)


def write(transfer: Transfer, path: Path) -> None:
    """Write a `table` environment; the best source of a target is bold if it beats the baseline."""
    matrix = transfer.matrix
    best = dict(best_sources(matrix).select("target", "best").iter_rows())
    key = " Bold: the best of a column, where it is better than the baseline beyond chance. In brackets: intervals."
    if any(MARK in cell.text for cell in transfer.cells.values()):
        key += r" $^{*}$: $q < 0.05$."
    lines = [r"% \usepackage{booktabs}"]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{escape(caption(transfer))}{key}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(matrix.targets)}}}", r"\toprule"]
    lines += [row(["", *map(escape, matrix.targets)]), r"\midrule"]
    for source in matrix.sources:
        cells = [escape(source)]
        for cell in (transfer.cells[source, target] for target in matrix.targets):
            text = escape(cell.text.removesuffix(MARK))
            shown = rf"\textbf{{{text}}}" if best.get(cell.target) == source else text
            shown += "$^{*}$" if MARK in cell.text else ""
            interval = rf" {{\scriptsize ({escape(cell.interval)})}}" if cell.interval else ""
            cells.append(shown + interval)
        lines.append(row(cells))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def escape(text: str) -> str:
    """Return text that LaTeX sets as it is, on one line."""
    return " ".join(plain(text).split()).translate(_SPECIAL)


def row(cells: Iterable[str]) -> str:
    """Return a row of a table, of cells that are escaped."""
    return f"{' & '.join(cells)} \\\\"
