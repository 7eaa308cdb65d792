"""The content of a report about learned non-linearities, before it has a format."""

from __future__ import annotations

import polars as pl

from graft.report.nonlinearities.learned import MOST, Learned, Nonlinearity
from graft.report.rendering.document import Table
from graft.report.rendering.formatting import number

HEADING = "What the sources learned"
"""Heading of the section within the report of a compatibility matrix."""

_FOLDED = 24
"""Rows of a table up to which it is open from the start."""


def title(learned: Learned) -> str:
    """Return the report's heading."""
    return f"Non-linearities of {learned.study}"


def caption(learned: Learned) -> str:
    """Describe the figure."""
    sentences = ["The non-linearities that trials learned on each task, where they move; beyond they are constant."]
    if any(len(panel.members) > 1 for panel in learned.panels):
        sentences.append(f"Thick: the best of a task by {learned.objective}; at most {MOST} of each are shown.")
    sentences.append("Dashed: GELU.")
    if learned.version:
        sentences.append(f"In the other colour: {learned.version.label}.")
    return " ".join(sentences)


def list_drawn(learned: Learned) -> list[Nonlinearity]:
    """List the non-linearities that are drawn, in the order of the panels."""
    return [spline for panel in learned.panels for spline in panel.members]


def table(learned: Learned) -> Table:
    """Return a row for each of `list_drawn`; after two labels comes the trial's number."""
    rows: list[list[str]] = []
    for spline in list_drawn(learned):
        cells = [spline.task, spline.component, str(spline.number), number(spline.objective)]
        cells += [number(len(spline.knots)), _range(spline.low, spline.high), _range(*spline.active_range)]
        measures = [spline.variation, spline.slope, spline.distance]
        measures += [spline.version.error] if spline.version else []
        rows.append([*cells, *map(number, measures)])
    header = ["Task", "Component", "Trial", learned.objective, "Knots", "Range", "Moves on"]
    header += ["Total variation", "Largest slope", "Most off GELU"]
    header += [f"Most off {learned.version.name}"] if learned.version else []
    words = "The learned splines, best first; the distance to GELU is the largest where they move"
    return Table(caption=words, header=header, rows=rows, labels=2, folded=len(rows) > _FOLDED)


def _range(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def worst_version(learned: Learned) -> str | None:
    """Describe how far the worst version is from what was learned; None without versions."""
    if not learned.version:
        return None
    errors = [spline.version.error if spline.version else 0.0 for spline in learned.members]
    worst = learned.members[errors.index(max(errors))]
    where = f"trial {worst.number}, {worst.task}, {worst.component}"
    return f"{learned.version.label}: off by at most {number(max(errors))} ({where})"


def frame(learned: Learned) -> pl.DataFrame:
    """Return a row per knot: number, task, component, x, y, the version's value under its name."""
    named = {"number": pl.Int64(), "task": pl.String(), "component": pl.String()}
    version = [learned.version.name] if learned.version else []
    curves = {name: pl.List(pl.Float64()) for name in ("x", "y", *version)}
    rows: list[tuple[object, ...]] = []
    for spline in learned.members:
        values = [spline.positions, spline.knots, *([spline.version.at_knots] if spline.version else [])]
        rows.append((spline.number, spline.task, spline.component, *values))
    return pl.DataFrame(rows, schema={**named, **curves}, orient="row").explode(*curves)
