"""What a report says about the non-linearities that a study's trials learned, before it has a format."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from graft.report.document import Table
from graft.report.formatting import number
from spaces.errors import StorageError
from spaces.settings import Direction
from workers.networks.frozen_splines import active_range

if TYPE_CHECKING:
    from workers.networks.spline_variants import Range, Version

HEADING = "What the sources learned"
"""Of the section within the report of a compatibility matrix."""
MOST = 30
"""Non-linearities of one task and component that are drawn and listed: the best."""

_SAMPLES = 1001
_FOLDED = 24
"""Rows of a table up to which it is open from the start."""


@dataclass(frozen=True, kw_only=True)
class Nonlinearity:
    """A linear spline that a trial learned: `knots` at evenly spaced places from `low` to `high`, constant beyond.

    Raises StorageError for a row that is no such spline.
    """

    id: int
    """Of its row in the table `architectures`."""
    number: int
    task: str
    component: str
    low: float
    high: float
    knots: Sequence[float]
    objective: float | None
    version: Version | None = None
    """Another function that stands in for it."""

    def __post_init__(self) -> None:
        if len(self.knots) < 2 or None in self.knots or not self.low < self.high:
            raise StorageError(
                f"architectures: row {self.id} (trial {self.number}) must have two or more knots, all numbers, from "
                "low to a larger high"
            )

    @property
    def places(self) -> list[float]:
        """Where the knots are."""
        return np.linspace(self.low, self.high, len(self.knots)).tolist()

    @property
    def moving(self) -> Range:
        """From where to where it is not constant; all of its range if it is constant throughout."""
        return active_range(self.knots, self.low, self.high)

    @property
    def variation(self) -> float:
        """Total variation: the sum of all rises and falls."""
        return float(np.abs(np.diff(self.knots)).sum())

    @property
    def slope(self) -> float:
        """The steepest slope, up or down, without its sign."""
        return float(np.abs(np.diff(self.knots)).max()) * (len(self.knots) - 1) / (self.high - self.low)

    @property
    def distance(self) -> float:
        """The largest distance to GELU where it moves."""
        there = np.linspace(*self.moving, _SAMPLES).tolist()
        own = np.interp(there, self.places, self.knots)
        return float(np.abs(own - [gelu(x) for x in there]).max())


def gelu(x: float) -> float:
    """The non-linearity of the baseline transformer."""
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What was learned for one component on one task."""

    title: str
    members: Sequence[Nonlinearity]
    """At most MOST, the best by the trial's objective first; those without one last."""

    @property
    def leader(self) -> Nonlinearity | None:
        """The best, or the only one; None where no trial has an objective."""
        first = self.members[0]
        return first if len(self.members) == 1 or first.objective is not None else None


@dataclass(frozen=True, kw_only=True)
class Learned:
    """All non-linearities of a report; at least one."""

    study: str
    objective: str
    members: Sequence[Nonlinearity]
    """By task and component, the best first."""

    @classmethod
    def of(
        cls, study: Mapping[str, Any], architectures: pl.DataFrame, directions: Mapping[str, Direction] | None = None
    ) -> Self:
        """Of a row of `studies` and a frame of `architectures`, as storage gives them.

        `directions`: task -> direction, of a transfer whose tasks do not share the study's.
        """
        rising = [task for task, direction in (directions or {}).items() if direction == "maximize"]
        is_rising = pl.col("task").is_in(rising) if directions else pl.lit(study["direction"] == "maximize")
        gain = pl.when(is_rising).then("objective").otherwise(-pl.col("objective"))
        ordered = architectures.sort("task", "component", -gain, "number", nulls_last=True)
        found = [Nonlinearity(**row) for row in ordered.iter_rows(named=True)]
        return cls(study=study["name"], objective=study["objective"], members=found)

    @property
    def panels(self) -> list[Panel]:
        """One for each task and component; the component is named where there are two."""
        several = len({one.component for one in self.members}) > 1
        return [
            Panel(title=f"{task}, {component}" if several else task, members=list(itertools.islice(members, MOST)))
            for (task, component), members in itertools.groupby(self.members, lambda one: (one.task, one.component))
        ]

    @property
    def version(self) -> Version | None:
        """The version of the first, by which those of all are named; None if there are none."""
        return self.members[0].version


def title(learned: Learned) -> str:
    """The report's heading."""
    return f"Non-linearities of {learned.study}"


def caption(learned: Learned) -> str:
    """What the figure shows."""
    sentences = ["The non-linearities that trials learned on each task, where they move; beyond they are constant."]
    if any(len(panel.members) > 1 for panel in learned.panels):
        sentences.append(f"Thick: the best of a task by {learned.objective}; at most {MOST} of each are shown.")
    sentences.append("Dashed: GELU.")
    if learned.version:
        sentences.append(f"In the other colour: {learned.version.label}.")
    return " ".join(sentences)


def listed(learned: Learned) -> list[Nonlinearity]:
    """Those that are drawn, in the order of the panels."""
    return [one for panel in learned.panels for one in panel.members]


def table(learned: Learned) -> Table:
    """One row for each of `listed`; after two labels the trial's number."""
    rows = list(map(_row, listed(learned)))
    header = ["Task", "Component", "Trial", learned.objective, "Knots", "Range", "Moves on", "Total variation"]
    header += ["Largest slope", "Most off GELU", *([f"Most off {learned.version.name}"] if learned.version else [])]
    words = "The learned splines, best first; the distance to GELU is the largest where they move"
    return Table(caption=words, header=header, rows=rows, labels=2, folded=len(rows) > _FOLDED)


def _row(one: Nonlinearity) -> list[str]:
    cells = [one.task, one.component, str(one.number), number(one.objective), number(len(one.knots))]
    cells += [_range(one.low, one.high), _range(*one.moving), number(one.variation), number(one.slope)]
    return [*cells, number(one.distance), *([number(one.version.error)] if one.version else [])]


def _range(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}"


def worst_version(learned: Learned) -> str | None:
    """How far the worst of the versions is from what was learned; None if there are none."""
    if not learned.version:
        return None
    errors = [one.version.error if one.version else 0.0 for one in learned.members]
    worst = learned.members[errors.index(max(errors))]
    where = f"trial {worst.number}, {worst.task}, {worst.component}"
    return f"{learned.version.label}: off by at most {number(max(errors))} ({where})"


def frame(learned: Learned) -> pl.DataFrame:
    """One row for each knot: number, task, component, x, y, and the version's value under its name."""
    named = {"number": pl.Int64(), "task": pl.String(), "component": pl.String()}
    curves = {name: pl.List(pl.Float64()) for name in ("x", "y", *([learned.version.name] if learned.version else []))}
    rows = [
        (one.number, one.task, one.component, one.places, one.knots, *([one.version.at_knots] if one.version else []))
        for one in learned.members
    ]
    return pl.DataFrame(rows, schema={**named, **curves}, orient="row").explode(*curves)
