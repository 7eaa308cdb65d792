"""Random search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from search.samplers import Sampler, Strategy
from search.samplers._points import PointStrategy, RandomPoints
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class RandomSearch(Sampler):
    """Uniform and independent coordinates, as in paper 003.

    Source: Bergstra, Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012.
    """

    learns = False

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        seed = space.search.seed
        groups = RandomPoints(seed, space.group_draws)
        return PointStrategy(space, groups, RandomPoints(seed, space.trial_draws))
