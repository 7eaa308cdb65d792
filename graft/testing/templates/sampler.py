"""A sampler: which trials are tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.samplers import Sampler, Strategy
from spaces.plugins.fields import knob
from spaces.records import Outcome, Trial

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space


class _Search(Strategy):
    def __init__(self, space: Space, spread: float, outcomes: Sequence[Outcome]) -> None:
        self._space = space
        self._spread = spread
        self._sign = space.search.objective.sign
        self._best: Outcome | None = None
        self.tell(outcomes)

    def ask(self, numbers: range) -> list[Trial]:
        return [self._space.sample(number, self._coordinates(number)) for number in numbers]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        # An objective is None for a trial that diverged, failed, or is still in the queue.
        for outcome in outcomes:
            if outcome.objective is not None and (self._best is None or self._loss(outcome) < self._loss(self._best)):
                self._best = outcome

    def _loss(self, outcome: Outcome) -> float:
        assert outcome.objective is not None, "only such trials are compared"
        return self._sign * outcome.objective

    def _coordinates(self, number: int) -> Callable[[Draw], float]:
        """Return coordinates; those of draws that a group shares depend on the group alone."""
        best = self._best.draws if self._best else {}

        def coordinate_of(draw: Draw) -> float:
            group = draw.scope == "group"
            key = number // self._space.search.group if group else number
            coordinate = random.Random(f"{self._space.search.seed} {draw.scope} {draw.name} {key}").random()
            if group or draw.name not in best:
                return coordinate
            return (best[draw.name] + self._spread * (coordinate - 0.5)) % 1.0

        return coordinate_of


@dataclass(frozen=True, kw_only=True)
class Example(Sampler):
    """Tries points near the best trial so far: each coordinate at most half of `spread` away."""

    spread: float = knob(0.5, low=0, high=1, open_low=True)

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        return _Search(space, self.spread, outcomes)
