"""Optuna's samplers at work on a space: define-by-run in memory, over coordinates in [0, 1)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from math import nextafter
from typing import TYPE_CHECKING, Any, ClassVar, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.samplers import Sampler, Strategy
from search.samplers._memory import BoundedMemory, Observation
from spaces.records import TERMINAL, Draws, Outcome, Trial
from spaces.seeds import stream_word

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

BELOW_ONE = nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a sampler sees at once; the cost of an ask grows with it, and with nothing else."""

    newest: int
    best: int
    running: int
    """The newest trials without an outcome that are shown."""


class OptunaSampler(Sampler):
    """A sampler of Optuna: how it is made, and how much it sees."""

    attributes: ClassVar[Mapping[str, Any]] = {}
    """Optuna's own attributes, which every trial that it is shown has."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits on what it sees at once."""

    @abstractmethod
    def make(self, seed: int) -> BaseSampler:
        """Make Optuna's sampler from a 32-bit seed."""

    @property
    def takes_two_objectives(self) -> bool:
        """True, for every sampler of Optuna."""
        return True

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        return OptunaStrategy(space, outcomes, self)


@final
class OptunaStrategy(Strategy):
    """One of Optuna's samplers, shown the newest and the best trials.

    A trial that diverged or failed counts as the worst seen so far, so that the sampler avoids it;
    before any objective, such trials are left out. A pruned trial counts with its objective so far.
    Constraints are shown by Optuna's rule, above 0 is broken; one that is not finite, or not known
    as the trial diverged or failed, counts as the worst excess seen.

    A trial depends on the outcomes in their order, the open trials, and its number alone: each ask
    has a study of its own, and a sampler with a seed of (search seed, number). So a resumed search
    asks what it would have asked without the interruption.
    """

    def __init__(self, space: Space, outcomes: Sequence[Outcome], sampler: OptunaSampler) -> None:
        self._space = space
        self._sampler = sampler
        self._signs = space.search.signs
        self._distributions: dict[str, BaseDistribution] = {
            draw.name: CategoricalDistribution(tuple(range(draw.choices)))
            if draw.choices
            else FloatDistribution(0.0, 1.0)
            for draw in space.draws
        }
        self._memory = BoundedMemory(sampler.limits.newest, sampler.limits.best)
        self._open: dict[int, Draws] = {}
        """Number -> coordinates of the trials without an outcome."""
        self._shared = SharedDraws(space)
        self._worst_excess = 1.0
        self._made: dict[Observation, FrozenTrial] = {}
        """The memory as it was shown at the last ask."""
        for outcome in outcomes:
            self._shared.keep(outcome.group, outcome.draws)
            if outcome.state in TERMINAL:
                self._remember(outcome)
            else:
                self._open[outcome.number] = outcome.draws

    def ask(self, numbers: range) -> list[Trial]:
        return [self._ask(number) for number in numbers]

    def _ask(self, number: int) -> Trial:
        study = self._build(stream_word(self._space.search.seed, number) >> 32)
        if shared := self._shared.of(number // self._space.search.group):
            study.enqueue_trial({name: self._parameter(name, u) for name, u in shared.items()})
        suggestion = study.ask()

        def suggest(draw: Draw) -> float:
            # Optuna's ranges include their end, and a choice becomes its option's middle.
            if draw.choices is None:
                return min(suggestion.suggest_float(draw.name, 0.0, 1.0), BELOW_ONE)
            option = suggestion.suggest_categorical(draw.name, tuple(range(draw.choices)))
            return (option + 0.5) / draw.choices

        trial = self._space.sample(number, suggest)
        self._open[number] = trial.draws
        self._shared.keep(trial.group, trial.draws)
        return trial

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._remember(outcome)
            self._open.pop(outcome.number, None)

    def _remember(self, outcome: Outcome) -> None:
        objectives = (outcome.objective, outcome.second_objective)[: len(self._signs)]
        pairs = zip(self._signs, objectives, strict=True)
        costs = [None if value is None else sign * value for sign, value in pairs]
        # Optuna's Gaussian process takes as many constraints of every trial. One that diverged before
        # its first validation has none, and a constraint on an option is not rated without the option.
        known = outcome.constraints
        constraints = {
            bound.text: None if known is None else known.get(bound.text, 0.0) for bound in self._space.search.feasible
        }
        worst = self._memory.worst, self._worst_excess
        excesses = (excess or 0.0 for excess in constraints.values())
        self._worst_excess = max(self._worst_excess, *excesses, 0.0)
        self._memory.add(Observation(outcome.draws, tuple(costs), constraints))
        if worst != (self._memory.worst, self._worst_excess):
            self._made = {}

    def _build(self, seed: int) -> optuna.Study:
        directions = [StudyDirection.MINIMIZE for _ in self._signs]
        study = optuna.create_study(sampler=self._sampler.make(seed), directions=directions)
        worst, made = self._memory.worst, self._made
        self._made = {}
        for seen in self._memory:
            if known := made.get(seen):
                self._made[seen] = known
            elif worst is None:
                self._made[seen] = self._make_trial(seen.draws, TrialState.FAIL)
            else:
                pairs = zip(seen.costs, worst, strict=True)
                values = [bad if cost is None else cost for cost, bad in pairs]
                excesses = {
                    text: self._worst_excess if excess is None else excess for text, excess in seen.constraints.items()
                }
                complete = TrialState.COMPLETE
                self._made[seen] = self._make_trial(seen.draws, complete, values, excesses)
        study.add_trials(self._made.values())
        for number in sorted(self._open)[-self._sampler.limits.running :]:
            study.add_trial(self._make_trial(self._open[number], TrialState.RUNNING))
        return study

    def _make_trial(
        self,
        draws: Draws,
        state: TrialState,
        values: Sequence[float] | None = None,
        constraints: dict[str, float] | None = None,
    ) -> FrozenTrial:
        now = datetime.now()
        trial = ShownTrial(
            number=-1,  # both are the storage's to give
            trial_id=-1,
            state=state,
            value=None,
            values=values,
            datetime_start=now,
            datetime_complete=now if state.is_finished() else None,
            params={name: self._parameter(name, u) for name, u in draws.items()},
            distributions={name: self._distributions[name] for name in draws},
            user_attrs={},
            system_attrs=dict(self._sampler.attributes),
            intermediate_values={},
        )
        for text, excess in (constraints or {}).items():
            trial.set_constraint(text, excess)
        return trial

    def _parameter(self, name: str, u: float) -> float:
        distribution = self._distributions[name]
        if isinstance(distribution, CategoricalDistribution):
            return int(u * len(distribution.choices))
        return u


@final
class ShownTrial(FrozenTrial):
    """A trial of Optuna with shallow deep copies, which would be most of the cost of an ask."""

    def __deepcopy__(self, memo: object) -> FrozenTrial:
        return copy(self)


@final
class SharedDraws:
    """The coordinates that the trials of a group share, for the groups that are still asked."""

    def __init__(self, space: Space) -> None:
        # A group of one trial shares nothing.
        self._names = [draw.name for draw in space.group_draws] if space.search.group > 1 else []
        self._groups: dict[int, dict[str, float]] = {}

    def of(self, group: int) -> Draws:
        """Return the group's coordinates, if any, and forget earlier groups."""
        for earlier in [known for known in self._groups if known < group]:
            del self._groups[earlier]
        return self._groups.get(group, {})

    def keep(self, group: int, draws: Draws) -> None:
        """Remember the shared coordinates of a trial's group, those of its active draws."""
        if self._names:
            known = self._groups.setdefault(group, {})
            known.update({name: draws[name] for name in self._names if name in draws})
