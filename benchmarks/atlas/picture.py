"""The matrix of the atlas as SVG: sets down, arms across, shaded only where an effect is told apart from none.

Written as text, so that the same cells give the same file whatever draws figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.atlas.effects import Atlas
from search.analysis.statistics.verdicts import BETTER, UNDECIDED

_WIDTH, _HEIGHT, _LEFT, _TOP = 66, 30, 190, 96
"""Of a cell, of the names beside the cells and of those above them, in pixels."""
_STEPS = (5.0, 20.0)
"""Effects from which on a colour is stronger."""
_COLOURS = {True: ("#d6e6f4", "#85b8dd", "#2878b5"), False: ("#fbe3d4", "#f4ab83", "#cf5b2e")}
"""Of better and worse, weak to strong; told apart with any colour vision."""
_INK, _SOFT = "#1b1f24", "#57606a"


def draw(atlas: Atlas) -> str:
    """Return the picture, one line an element."""
    rows = list(atlas.floors.iter_rows(named=True))
    arms: list[str] = atlas.cells["arm"].unique(maintain_order=True).to_list()
    cells = {(cell["task"], cell["endpoint"], cell["arm"]): cell for cell in atlas.cells.iter_rows(named=True)}
    size = _LEFT + len(arms) * _WIDTH + 30, _TOP + len(rows) * _HEIGHT + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="white"/>',
    ]
    for column, arm in enumerate(arms):
        x, y = _LEFT + (column + 0.4) * _WIDTH, _TOP - 8
        lines.append(_text(x, y, arm, 12, anchor="start", more=f' transform="rotate(-38 {x:g} {y:g})"'))
    for row, end in enumerate(rows):
        name = f"{end['task']}, {end['endpoint']}{'' if end['learned'] else ' †'}"
        lines.append(_text(_LEFT - 8, _TOP + row * _HEIGHT + 19, name, 12, anchor="end"))
        for column, arm in enumerate(arms):
            cell = cells.get((end["task"], end["endpoint"], arm))
            lines += _cell(_LEFT + column * _WIDTH, _TOP + row * _HEIGHT, cell)
    about = "† the baseline is not above the floor. More is better: points, or -100 ln of an error; 95 % intervals."
    lines.append(_text(_LEFT, size[1] - 12, about, 11, anchor="start", colour=_SOFT))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _cell(x: int, y: int, cell: Mapping[str, Any] | None) -> Iterator[str]:
    fill, ink = _shade(cell) if cell else ("#eceff2", _INK)
    yield f'<rect x="{x}" y="{y}" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" fill="{fill}" stroke="#d8dee4"/>'
    if cell:
        middle = x + _WIDTH / 2
        yield _text(middle, y + 13, signed(cell["mean"]), 11, colour=ink)
        yield _text(middle, y + 24, f"{signed(cell['low'])} to {signed(cell['high'])}", 7.5, colour=ink)


def _shade(cell: Mapping[str, Any]) -> tuple[str, str]:
    """Return the colours of a cell and of what is written on it."""
    if cell["verdict"] in (UNDECIDED, None):
        return "white", _SOFT
    strength = sum(abs(cell["mean"]) >= step for step in _STEPS)
    return _COLOURS[cell["verdict"] == BETTER][strength], "white" if strength == len(_STEPS) else _INK


def signed(value: float) -> str:
    """Return a score's change: with one decimal below 10, and never as 0 unless it is."""
    if abs(value) >= 0.095:
        return f"{value:+.1f}" if abs(value) < 9.95 else f"{value:+.0f}"
    return f"{value:+.1g}" if value else "0"


def _text(
    x: float, y: float, text: str, size: float, *, anchor: str = "middle", colour: str = _INK, more: str = ""
) -> str:
    attributes = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{colour}"{more}'
    return f"<text {attributes}>{escape(text)}</text>"
