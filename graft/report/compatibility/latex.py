"""The compatibility matrix as a LaTeX table (package booktabs)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from graft.report.compatibility.cells import MARK, Cell
from graft.report.compatibility.content import Transfer, caption
from graft.report.rendering.formatting import plain
from search.analysis.transfer.affinity import best_sources

_SPECIAL: Mapping[str, str] = {
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


def write(transfer: Transfer, path: Path) -> None:
    """Write a `table` environment; a target's best source is bold if it beats the baseline beyond chance."""
    matrix = transfer.matrix
    best = dict(best_sources(matrix).select("target", "best").iter_rows())
    key = " Bold: the best of a column, where it is better than the baseline beyond chance. In brackets: intervals."
    if any(MARK in cell.text for cell in transfer.cells.values()):
        key += r" $^{*}$: $q < 0.05$."
    lines = [r"% \usepackage{booktabs}"]
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{escape(caption(transfer))}{key}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(matrix.targets)}}}", r"\toprule"]
    lines += [_row(["", *map(escape, matrix.targets)]), r"\midrule"]
    for source in matrix.sources:
        cells = [transfer.cells[source, target] for target in matrix.targets]
        lines.append(_row([escape(source), *(_cell(cell, best.get(cell.target) == source) for cell in cells)]))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def escape(text: str) -> str:
    """Text that LaTeX sets as it is, on one line."""
    return re.sub("|".join(map(re.escape, _SPECIAL)), lambda found: _SPECIAL[found[0]], " ".join(plain(text).split()))


def _cell(cell: Cell, is_best: bool) -> str:
    text = escape(cell.text.removesuffix(MARK))
    shown = (rf"\textbf{{{text}}}" if is_best else text) + ("$^{*}$" if MARK in cell.text else "")
    return rf"{shown} {{\scriptsize ({escape(cell.interval)})}}" if cell.interval else shown


def _row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
