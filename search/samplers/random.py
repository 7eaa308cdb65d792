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
    """Every coordinate uniform and independent; what paper 003 uses.

    Source: Bergstra, Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012.
    """

    learns = False

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start; the outcomes are not needed."""
        seed = space.search.seed
        return PointStrategy(space, RandomPoints(seed, space.group_draws), RandomPoints(seed, space.trial_draws))
