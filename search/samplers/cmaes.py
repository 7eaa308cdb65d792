"""Covariance matrix adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nextafter
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from cmaes import CMA, get_warm_start_mgd
from numpy.typing import NDArray

from search.samplers import Sampler, Strategy
from search.samplers._points import RandomPoints
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import TERMINAL, Outcome, Trial
from spaces.seeds import stream_word

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

Vector = NDArray[np.float64]
WARM_START = 20
"""Trials with an objective that a restart needs to estimate where the search was."""


@final
@dataclass(frozen=True, kw_only=True)
class CovarianceAdaptation(Sampler):
    """CMA-ES over the continuous draws that every trial makes; other draws are random.

    These are choices, conditional draws and, if groups have several trials, the draws of groups.
    Trials that are not feasible rank last, as those do that diverged. The state is a mean and a
    covariance; a restart estimates them from the best tenth of the outcomes.
    Source: Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv 1604.00772; Nomura et al., arXiv
    2012.06932.
    """

    EXAMPLES: ClassVar[Examples] = ({"population": 6},)

    population: int = size(32, low=4)
    """Outcomes of one generation. Trials asked beyond it before it is complete are not learnt from:
    on a pack of more lanes, give the number of lanes."""

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start at the middle of the cube, or where the outcomes were best."""
        return CovarianceStrategy(space, outcomes, self.population)


@final
class CovarianceStrategy(Strategy):
    """CMA-ES on one study. Optuna's wrapper cannot resume from rows."""

    def __init__(self, space: Space, outcomes: Sequence[Outcome], population: int) -> None:
        self._space = space
        self._population = population
        self._sign = space.search.objective.sign
        draws = [draw for draw in space.own_draws if draw.choices is None and draw.condition is None]
        self._dimensions = {draw.name: index for index, draw in enumerate(draws)}
        self._random = {draw.name: RandomPoints(space.search.seed, [draw]) for draw in space.draws}
        self._generation = 0
        self._asked: dict[int, int] = {}
        self._results: list[tuple[Vector, float | None]] = []
        known = [
            (self._vector(outcome), self._sign * outcome.objective)
            for outcome in outcomes
            if outcome.state in TERMINAL and outcome.objective is not None and outcome.feasible
        ]
        self._optimizer: CMA | None = None
        if self._dimensions:
            self._optimizer = self._cold()
            if len(known) >= WARM_START:
                self._optimizer = self._optimizer_at(*get_warm_start_mgd(known))

    def _cold(self) -> CMA:
        return self._optimizer_at(np.full(len(self._dimensions), 0.5), 1 / 6, None)

    def _optimizer_at(self, mean: Vector, sigma: float, covariance: NDArray[np.float64] | None) -> CMA:
        bounds = np.tile([0.0, 1.0], (len(self._dimensions), 1))
        return CMA(
            mean=np.clip(mean, 0.0, 1.0),
            sigma=sigma,
            cov=covariance,
            bounds=bounds,
            population_size=self._population,
        )

    def ask(self, numbers: range) -> list[Trial]:
        return [self._ask(number) for number in numbers]

    def _ask(self, number: int) -> Trial:
        seed, group = self._space.search.seed, number // self._space.search.group
        point: list[float] = []
        if self._optimizer is not None:
            # The point depends on the distribution, the seed and the number, not on earlier asks.
            self._optimizer.reseed_rng(stream_word(seed, number) >> 32)
            point = np.clip(self._optimizer.ask(), 0.0, nextafter(1.0, 0.0)).tolist()

        def coordinate(draw: Draw) -> float:
            if draw.name in self._dimensions:
                return point[self._dimensions[draw.name]]
            index = group if draw.scope == "group" else number
            return float(self._random[draw.name].rows(index, 1)[0, 0])

        self._asked[number] = self._generation
        return self._space.sample(number, coordinate)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials of the current generation; others come from an old distribution."""
        for outcome in outcomes:
            is_current = self._asked.pop(outcome.number, None) == self._generation
            if self._optimizer is None or not is_current:
                continue
            objective = outcome.objective if outcome.feasible else None
            cost = None if objective is None else self._sign * objective
            self._results.append((self._vector(outcome), cost))
            if len(self._results) < self._population:
                continue
            # Trials that diverged, failed or are not feasible rank last in their generation.
            worst = max((cost for _, cost in self._results if cost is not None), default=0.0)
            points = [(point, worst if cost is None else cost) for point, cost in self._results]
            self._optimizer.tell(points)
            if self._optimizer.should_stop():
                self._optimizer = self._cold()
            self._results = []
            self._generation += 1

    def _vector(self, outcome: Outcome) -> Vector:
        return np.array([outcome.draws[name] for name in self._dimensions])
