"""Grid search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from search.samplers import Sampler
from search.samplers._points import Points, PointStrategy
from spaces.errors import SpaceError
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class Grid(Sampler):
    """Every combination once: all options of each choice, and `points` even coordinates of others.

    The last draw of the space moves fastest. Draws of a branch that is not taken are part of the
    product too, so a space with conditional draws repeats trials.
    """

    learns = False
    EXAMPLES: ClassVar[Examples] = ({"points": 2},)

    points: int = size(5)
    """Coordinates per draw, at the middles of `points` equal parts of [0, 1)."""

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> PointStrategy:
        """Start; SpaceError unless `search.group` divides the points that each of a group meets."""
        of_groups, of_trials = self._options(space.group_draws), self._options(space.trial_draws)
        group, per_group = space.search.group, prod(of_trials)
        if not space.group_draws:
            return PointStrategy(space, GridPoints((), 1), GridPoints(of_trials, 1), per_group)
        if per_group % group:
            raise SpaceError(
                f"search.group: {group} must divide the {per_group} points of the grid that the trials of a group share"
            )
        groups = GridPoints(of_groups, per_group // group)
        return PointStrategy(space, groups, GridPoints(of_trials, 1), prod(of_groups) * per_group)

    def _options(self, draws: Sequence[Draw]) -> tuple[int, ...]:
        return tuple(draw.choices or self.points for draw in draws)


@final
class GridPoints(Points):
    """All combinations of options[d] coordinates per dimension, each `repeat` times, in a cycle."""

    def __init__(self, options: tuple[int, ...], repeat: int) -> None:
        self._options = options
        self._repeat = repeat

    def rows(self, first: int, count: int) -> NDArray[np.float64]:
        if not self._options:
            return np.empty((count, 0))
        # Digits by Python's own integers: a grid may have more points than fit into 64 bits.
        points: list[list[float]] = []
        for index in range(first, first + count):
            rest, point = index // self._repeat, list[float]()
            for options in reversed(self._options):
                rest, digit = divmod(rest, options)
                point.append((digit + 0.5) / options)
            points.append(point[::-1])
        return np.array(points)
