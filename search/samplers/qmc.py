"""Quasi-Monte Carlo search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray
from scipy.stats.qmc import Sobol

from search.samplers import Sampler, Strategy
from search.samplers._points import Points, PointStrategy
from spaces.records import Outcome
from spaces.seeds import mix64

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class QuasiMonteCarlo(Sampler):
    """Scrambled Sobol points: they fill the cube more evenly than independent ones.

    There are two sequences, one for the draws of groups and one for those of trials. A choice takes
    a coordinate like any other draw.
    Source: Owen, "Scrambling Sobol' and Niederreiter-Xing Points", J. Complexity 1998.
    """

    learns = False

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        seed = space.search.seed
        groups = SobolPoints(len(space.group_draws), mix64(seed))
        return PointStrategy(space, groups, SobolPoints(len(space.trial_draws), mix64(~seed)))


@final
class SobolPoints(Points):
    """The scrambled Sobol sequence in `dimensions` dimensions."""

    def __init__(self, dimensions: int, seed: int) -> None:
        self._dimensions = dimensions
        self._engine = Sobol(dimensions, rng=seed) if dimensions else None

    def rows(self, first: int, count: int) -> NDArray[np.float64]:
        engine = self._engine
        if engine is None:
            return np.empty((count, 0))
        if first < engine.num_generated:
            engine.reset()
        if first > engine.num_generated:
            engine.fast_forward(first - engine.num_generated)
        # The first point is drawn apart: scipy warns if the first draw's length is no power of two.
        return np.concatenate([engine.random(1), engine.random(count - 1)])
