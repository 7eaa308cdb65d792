"""The non-linearities that a study's trials learned, ordered by task and by objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from spaces.errors import RowError
from spaces.settings import Direction
from workers.networks.frozen_splines import active_range

if TYPE_CHECKING:
    from workers.networks.spline_forms import Form, Range

MOST = 30
"""Non-linearities of one task and component that are drawn and listed, at most: the best."""

_SAMPLES = 1001


@dataclass(frozen=True, kw_only=True)
class Nonlinearity:
    """A linear spline that a trial learned: values at even knots from `low` to `high`.

    It is constant beyond. Raises RowError for a row that is no such spline.
    """

    id: int
    """Key of its row in the table `architectures`."""
    number: int
    task: str
    component: str
    low: float
    high: float
    knots: Sequence[float]
    objective: float | None
    version: Form | None = None
    """Another function that stands in for the spline."""

    def __post_init__(self) -> None:
        if len(self.knots) < 2 or None in self.knots or not self.low < self.high:
            raise RowError(
                f"architectures: row {self.id} (trial {self.number}) must have two or more knots, all numbers, from "
                "low to a larger high"
            )

    @property
    def positions(self) -> list[float]:
        """The positions of the knots."""
        return np.linspace(self.low, self.high, len(self.knots)).tolist()

    @property
    def active_range(self) -> Range:
        """The range outside of which it is constant; the whole range if it is constant."""
        return active_range(self.knots, self.low, self.high)

    @property
    def variation(self) -> float:
        """Total variation: the sum of all rises and falls."""
        return float(np.abs(np.diff(self.knots)).sum())

    @property
    def slope(self) -> float:
        """The steepest slope, up or down, without its sign."""
        steepest = float(np.abs(np.diff(self.knots)).max())
        return steepest * (len(self.knots) - 1) / (self.high - self.low)

    @property
    def distance(self) -> float:
        """The largest distance to GELU where it is active."""
        xs = np.linspace(*self.active_range, _SAMPLES).tolist()
        values = np.interp(xs, self.positions, self.knots)
        return float(np.abs(values - [gelu(x) for x in xs]).max())


def gelu(x: float) -> float:
    """Return the non-linearity of the baseline transformer."""
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The non-linearities learned for one component on one task."""

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
    """Sorted by task and component, the best first."""

    @classmethod
    def of(
        cls, study: Mapping[str, Any], architectures: pl.DataFrame, directions: Mapping[str, Direction] | None = None
    ) -> Self:
        """Build the learned non-linearities from a row of `studies` and a frame of `architectures`.

        `directions`: task -> direction, of a transfer whose tasks do not share the study's.
        """
        rising = [task for task, direction in (directions or {}).items() if direction == "maximize"]
        rises = pl.col("task").is_in(rising) if directions else pl.lit(study["direction"] == "maximize")
        gain = pl.when(rises).then("objective").otherwise(-pl.col("objective"))
        ordered = architectures.sort("task", "component", -gain, "number", nulls_last=True)
        members = [Nonlinearity(**row) for row in ordered.iter_rows(named=True)]
        return cls(study=study["name"], objective=study["objective"], members=members)

    @property
    def panels(self) -> list[Panel]:
        """One panel for each task and component; the component is named where there are two."""
        several = len({member.component for member in self.members}) > 1
        groups = itertools.groupby(self.members, lambda member: (member.task, member.component))
        return [
            Panel(title=f"{task}, {component}" if several else task, members=[*members][:MOST])
            for (task, component), members in groups
        ]

    @property
    def version(self) -> Form | None:
        """The version of the first, which names those of all; None if there are none."""
        return self.members[0].version
