"""Genetic search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from optuna.samplers import NSGAIISampler

from search.samplers._optuna import Limits, OptunaSampler
from spaces.plugins import Examples
from spaces.plugins.fields import size


@final
@dataclass(frozen=True, kw_only=True)
class Genetic(OptunaSampler):
    """Optuna's NSGA-II: children of the `population` best trials, by crossover and mutation.

    With two objectives the best are the fronts that dominate all others, one after the other,
    spread out by crowding distance; a feasible trial is better than one that is not. There are no
    generations to wait for: from `population` outcomes on, the parents are the best so far.
    Source: Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC
    2002.
    """

    EXAMPLES: ClassVar[Examples] = ({"population": 6},)

    population: int = size(50, low=2)
    """Parents, and random trials before the first child."""

    # Optuna keeps a trial's generation in this attribute. Remembered trials are generation 0, so
    # that the parents of each next trial are the best so far, whichever trials these descend from.
    attributes: ClassVar[Mapping[str, Any]] = {"NSGAIISampler:generation": 0}

    @property
    def limits(self) -> Limits:
        """The limits: as many newest, best and running trials as there are parents."""
        return Limits(newest=self.population, best=self.population, running=self.population)

    def make(self, seed: int) -> NSGAIISampler:
        return NSGAIISampler(seed=seed, population_size=self.population)
