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
    """Optuna's NSGA-II with one objective: children of the `population` best trials by uniform crossover and mutation.

    Source: Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 2002.
    """

    EXAMPLES: ClassVar[Examples] = ({"population": 6},)

    population: int = size(50, low=2)
    """Parents, and trials of a generation."""

    def begin(self, space: Space, history: Sequence[Outcome]) -> Strategy:
        """Start on what is remembered of the history."""
        return OptunaStrategy(
            space,
            history,
            sampler=lambda seed: NSGAIISampler(seed=seed, population_size=self.population),
            limits=Limits(newest=self.population, best=self.population, running=0, spare=10 * self.population),
            # Optuna keeps a trial's generation in this attribute. What is remembered becomes generation 0: with one
            # objective the parents are the best so far, whichever generation they were born in.
            attributes={"NSGAIISampler:generation": 0},
        )
