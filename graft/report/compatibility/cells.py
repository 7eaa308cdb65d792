"""The look of a cell of a compatibility matrix: its text, its colour, its details."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import matplotlib
import polars as pl
from matplotlib.colors import Colormap, to_hex

from graft.report.rendering.drawing import INK
from graft.report.rendering.formatting import MISSING, number
from search.analysis.statistics.verdicts import BETTER, WORSE

MARK = "*"
"""Stands after a change that differs from 0 beyond chance."""
_UNTESTED = 0.25
"""Share of a gain's colour where one pair gives no interval."""

COLOURS: Colormap = matplotlib.colormaps["RdBu"]
"""Red is worse than the baseline and blue better, with any colour vision."""

SUFFIX = {"points": " points", "percent": " %", "difference": ""}
"""The unit of a change -> the sign that is written after it."""


def change(value: float | None, decimals: int) -> str:
    """Return a change with its sign: +43, −10, 0."""
    if value is None:
        return MISSING
    text = f"{value:+,.{decimals}f}"
    return "0" if not text.strip("+-0.,") else text.replace("-", "−")


@dataclass(frozen=True, kw_only=True)
class Shading:
    """The change that has the strongest colour, and the decimals worth printing, by unit."""

    limits: Mapping[str, float]

    @classmethod
    def of(cls, cells: pl.DataFrame) -> Self:
        """Return per unit the largest change, or 4 x the upper quartile where that is less."""
        size = pl.col("mean").abs()
        known = cells.drop_nulls("mean").group_by("unit", maintain_order=True)
        sizes = known.agg(largest=size.max(), quartile=size.quantile(0.75, "linear"))
        rows = sizes.iter_rows()
        return cls(limits={unit: min(most, 4 * some or most) or 1.0 for unit, most, some in rows})

    def decimals(self, unit: str) -> int:
        """Return the decimals that show two digits of the largest changes."""
        return max(0, 1 - math.floor(math.log10(self.limits[unit])))

    def position(self, gain: float, unit: str) -> float:
        """Return a gain's position on the colour scale: 0 (worst), 0.5 (no change), 1 (best)."""
        return 0.5 + 0.5 * max(-1.0, min(1.0, gain / self.limits[unit]))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The text and look of one cell; a missing one has no gain and no colour."""

    source: str
    target: str
    text: str
    """The mean with its sign and, if it differs from 0 beyond chance, its mark."""
    interval: str = ""
    """The ends of the interval, `−6 to +17`; empty without one."""
    details: str
    """A sentence with all that is known of the cell."""
    gain: float | None = None
    colour: str | None = None
    """Colour of the interval's end next to 0: a change that may be none is white."""
    ink: str = INK
    shade: int | None = None
    """The class `g0` (worst) to `g20` (best) of the style sheet that is nearest to the colour."""

    @classmethod
    def of(cls, row: Mapping[str, Any], shading: Shading) -> Self:
        """Return the cell of a row of Matrix.cells."""
        source, target, mean, unit = row["source"], row["target"], row["mean"], row["unit"]
        if mean is None:
            details = f"{source} → {target}: no pair{_describe_exclusion(row)}"
            return cls(source=source, target=target, text=MISSING, details=details)
        sign = 1 if row["direction"] == "maximize" else -1
        gain = sign * mean
        sure = _UNTESTED * gain
        if row["low"] is not None:  # the interval's end next to 0, or 0 if the interval spans 0
            worst, best = sorted((sign * row["low"], sign * row["high"]))
            sure = max(worst, 0.0) + min(best, 0.0)
        position = shading.position(sure, unit)
        mark = MARK if row["verdict"] in (BETTER, WORSE) else ""
        decimals = shading.decimals(unit)
        ends = (change(row[end], decimals) for end in ("low", "high") if row[end] is not None)
        return cls(
            source=source,
            target=target,
            text=change(mean, decimals) + mark,
            interval=" to ".join(ends),
            details=_describe(row, decimals + 1),
            gain=gain,
            colour=to_hex(cast(Any, COLOURS(position))),
            ink="#ffffff" if abs(position - 0.5) > 0.3 else INK,
            shade=round(20 * position),
        )

    @property
    def is_own(self) -> bool:
        """True if the cell is on the diagonal."""
        return self.source == self.target


def _describe(row: Mapping[str, Any], decimals: int) -> str:
    parts = [f"{row['source']} → {row['target']}: {change(row['mean'], decimals)}{SUFFIX[row['unit']]}"]
    if row["low"] is not None:
        parts.append(f"interval {change(row['low'], decimals)} to {change(row['high'], decimals)}")
    parts.append("1 pair" if row["pairs"] == 1 else f"{number(row['pairs'])} pairs")
    if row["p"] is not None:
        parts.append(f"p {_probability(row['p'])}, q {_probability(row['q'])}")
    return ", ".join(parts) + _describe_exclusion(row)


def _describe_exclusion(row: Mapping[str, Any]) -> str:
    return f", {number(row['dropped'])} dropped" if row["dropped"] else ""


def _probability(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"= {value:.2g}"
