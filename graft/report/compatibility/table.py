"""A compatibility matrix as a table of HTML, for reports and for the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from graft.report.compatibility.cells import MARK, SUFFIX, change
from graft.report.compatibility.content import Transfer

Address = Callable[[str, str], str]
"""Source and target -> the address that a cell leads to."""


def draw_matrix(transfer: Transfer, address: Address, chosen: tuple[str, str] = ("", ""), *, sorts: bool = True) -> str:
    """Return the table and its scale of colours; `chosen` is the cell that is open.

    `sorts`: True if rendering/matrix.js runs in the page; names are then buttons that sort.
    """
    matrix = transfer.matrix
    head = "".join(_header("col", index, name, sorts) for index, name in enumerate(matrix.targets))
    rows: list[str] = []
    for index, source in enumerate(matrix.sources):
        row = _header("row", index, source, sorts)
        for cell in (transfer.cells[source, target] for target in matrix.targets):
            shade = "none" if cell.shade is None else f"g{cell.shade}"
            gain = "" if cell.gain is None else f' data-gain="{cell.gain!r}"'
            row += f'<td class="{shade}{" own" if cell.is_own else ""}"{gain}>'
            current = ' aria-current="true"' if (source, cell.target) == chosen else ""
            interval = f"<small>{escape(cell.interval)}</small>" if cell.interval else ""
            link = escape(address(source, cell.target))
            row += f'<a href="{link}" title="{escape(cell.details)}"{current}>'
            row += f"{escape(cell.text)}{interval}</a></td>"
        rows.append(f"<tr>{row}</tr>")
    body = "\n".join(rows)
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="Compatibility matrix">'
        f'<table class="matrix" id="matrix">\n<thead>\n<tr><td></td>{head}</tr>\n</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>\n{_draw_scale(transfer)}"
    )


def _header(scope: str, index: int, name: str, sorts: bool) -> str:
    text = f'<button type="button">{escape(name)}</button>' if sorts else escape(name)
    return f'<th scope="{scope}" data-place="{index}">{text}</th>'


def _draw_scale(transfer: Transfer) -> str:
    ends = ["worse", "better"]
    if len(transfer.shading.limits) == 1:
        ((unit, limit),) = transfer.shading.limits.items()
        sign = 1 if transfer.direction == "maximize" else -1
        decimals = transfer.shading.decimals(unit)
        ends = [
            f"{word} ({change(end, decimals)}{SUFFIX[unit]})"
            for word, end in zip(ends, (-sign * limit, sign * limit), strict=True)
        ]
    bar = "".join(f'<i class="g{shade}"></i>' for shade in range(21))
    notes = (
        f"framed: a source’s own target; hatched: no pair; {MARK} q (adjusted p) &lt; 0.05; "
        "colour: the end of the interval next to 0"
    )
    return f'<div class="scale">{ends[0]}<span>{bar}</span>{ends[1]}</div>\n<div class="scale">{notes}</div>'
