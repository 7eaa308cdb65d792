"""Optuna's samplers at work on a space: define-by-run over coordinates in [0, 1), in memory, with a bounded history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nextafter
from typing import TYPE_CHECKING, Any, final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from search.samplers import Strategy
from search.samplers._archive import Archive, Known
from spaces.records import TERMINAL, Outcome, Trial
from spaces.seeds import GAMMA, mix64

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

optuna.logging.set_verbosity(optuna.logging.ERROR)

BELOW_ONE = nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a sampler sees at once; the price of an ask grows with it, and with nothing else."""

    newest: int
    best: int
    running: int
    """Trials without an outcome that are shown, the newest."""
    spare: int
    """Trials that may be asked and told before the study is built anew from what is remembered."""


@final
class OptunaStrategy(Strategy):
    """One of Optuna's samplers, shown the newest and the best trials.

    A trial that diverged or failed counts as the worst seen so far, so that the sampler keeps away from it; as long as
    none has an objective, such trials are left out. A pruned trial counts with its objective so far.

    The study is built anew from what is remembered whenever `spare` trials have been asked and told. Then the sampler
    starts with a seed of (search seed, next number): a search that goes on after a restart does not repeat itself.
    """

    def __init__(
        self,
        space: Space,
        history: Sequence[Outcome],
        *,
        sampler: Callable[[int], BaseSampler],
        limits: Limits,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """`sampler` makes Optuna's from a 32-bit seed; `attributes` are put on every trial that is remembered."""
        self._space = space
        self._sampler = sampler
        self._limits = limits
        self._attributes = dict(attributes or {})
        self._sign = 1.0 if space.search.objective.direction == "minimize" else -1.0
        self._distributions = {draw.name: _distribution(draw) for draw in (*space.group_draws, *space.trial_draws)}
        self._archive = Archive(limits.newest, limits.best)
        self._running: dict[int, Mapping[str, float]] = {}
        self._shared = SharedDraws(space)
        self._study: optuna.Study | None = None
        self._places: dict[int, int] = {}
        self._seen = 0
        for outcome in history:
            self._shared.keep(outcome.group, outcome.draws)
            if outcome.state in TERMINAL:
                self._archive.add(self._known(outcome))
            else:
                self._running[outcome.number] = outcome.draws

    def ask(self, numbers: range) -> list[Trial]:
        """The trials of these numbers, in order."""
        return [self._ask(number) for number in numbers]

    def _ask(self, number: int) -> Trial:
        study = self._current(number)
        if shared := self._shared.of(number // self._space.search.group):
            study.enqueue_trial({name: self._parameter(name, u) for name, u in shared.items()})
        suggestion = study.ask()
        trial = self._space.sample(number, lambda draw: _suggest(suggestion, draw))
        self._places[number] = suggestion.number
        self._running[number] = trial.draws
        self._shared.keep(trial.group, trial.draws)
        self._seen += 1
        return trial

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended."""
        for outcome in outcomes:
            known = self._known(outcome)
            self._archive.add(known)
            self._running.pop(outcome.number, None)
            place = self._places.pop(outcome.number, None)
            if self._study is None:
                continue
            self._seen += 1
            if place is None:
                self._study.add_trial(self._ended(known))
            else:
                value = self._value(known)
                state = TrialState.FAIL if value is None else TrialState.COMPLETE
                self._study.tell(place, value, state=state)

    def _current(self, number: int) -> optuna.Study:
        if self._study is None or self._seen >= self._limits.spare:
            self._study = self._build(number)
            self._seen = 0
        return self._study

    def _build(self, number: int) -> optuna.Study:
        seed = mix64(mix64(self._space.search.seed) + (number + 1) * GAMMA) >> 32
        study = optuna.create_study(sampler=self._sampler(seed), direction="minimize")
        for known in self._archive:
            study.add_trial(self._ended(known))
        newest = list(self._running)[-self._limits.running :] if self._limits.running else []
        self._places = {running: len(self._archive) + index for index, running in enumerate(newest)}
        for running in newest:
            study.add_trial(self._frozen(self._running[running], TrialState.RUNNING, None))
        return study

    def _known(self, outcome: Outcome) -> Known:
        return Known(outcome.draws, None if outcome.objective is None else self._sign * outcome.objective)

    def _value(self, known: Known) -> float | None:
        return self._archive.worst if known.loss is None else known.loss

    def _ended(self, known: Known) -> FrozenTrial:
        value = self._value(known)
        return self._frozen(known.draws, TrialState.FAIL if value is None else TrialState.COMPLETE, value)

    def _frozen(self, draws: Mapping[str, float], state: TrialState, value: float | None) -> FrozenTrial:
        return optuna.trial.create_trial(
            state=state,
            value=value,
            params={name: self._parameter(name, u) for name, u in draws.items()},
            distributions={name: self._distributions[name] for name in draws},
            system_attrs=self._attributes,
        )

    def _parameter(self, name: str, u: float) -> float:
        distribution = self._distributions[name]
        return int(u * len(distribution.choices)) if isinstance(distribution, CategoricalDistribution) else u


@final
class SharedDraws:
    """The coordinates that the trials of a group have in common, for the groups that are still being asked."""

    def __init__(self, space: Space) -> None:
        # A group of one trial shares nothing.
        self._names = [draw.name for draw in space.group_draws] if space.search.group > 1 else []
        self._groups: dict[int, dict[str, float]] = {}

    def of(self, group: int) -> Mapping[str, float]:
        """The group's coordinates, empty before its first trial. Numbers ascend: earlier groups are forgotten."""
        for earlier in [known for known in self._groups if known < group]:
            del self._groups[earlier]
        return self._groups.get(group, {})

    def keep(self, group: int, draws: Mapping[str, float]) -> None:
        """Remember the coordinates of a trial's group, those of its active draws."""
        if self._names:
            known = self._groups.setdefault(group, {})
            known.update({name: draws[name] for name in self._names if name in draws})


def _distribution(draw: Draw) -> BaseDistribution:
    if draw.choices is None:
        return FloatDistribution(0.0, 1.0)
    return CategoricalDistribution(tuple(range(draw.choices)))


def _suggest(trial: optuna.Trial, draw: Draw) -> float:
    """The coordinate of a draw in [0, 1): Optuna's ranges include their end, a choice becomes its option's middle."""
    if draw.choices is None:
        return min(trial.suggest_float(draw.name, 0.0, 1.0), BELOW_ONE)
    return (trial.suggest_categorical(draw.name, tuple(range(draw.choices))) + 0.5) / draw.choices
