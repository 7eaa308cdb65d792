"""Genetic search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from optuna.samplers import NSGAIISampler

from search.samplers import Sampler, Strategy
from search.samplers._optuna import Limits, OptunaStrategy
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class Genetic(Sampler):
    """Optuna's NSGA-II: children of the `population` best trials so far, by uniform crossover and mutation.

    With two objectives the best are the fronts that dominate all others, one after the other, spread out by crowding
    distance; a feasible trial is better than one that is not. There are no generations to wait for: as soon as there
    are `population` outcomes, each ask takes the best of all so far for parents.
    Source: Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 2002.
    """

    EXAMPLES: ClassVar[Examples] = ({"population": 6},)

    population: int = size(50, low=2)
    """Parents, and random trials before the first child."""

    @property
    def takes_two_objectives(self) -> bool:
        """Yes."""
        return True

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on what is remembered of the outcomes."""
        return OptunaStrategy(
            space,
            outcomes,
            sampler=lambda seed: NSGAIISampler(seed=seed, population_size=self.population),
            limits=Limits(newest=self.population, best=self.population, running=self.population),
            # Optuna keeps a trial's generation in this attribute. What is remembered is generation 0, so that the
            # parents of each next trial are the best so far, whichever trials these descend from.
            attributes={"NSGAIISampler:generation": 0},
        )
