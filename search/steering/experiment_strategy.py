"""An experiment's trials in order: the configurations of each arm, then the best ones again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from search.objectives import mean_objective, rank_by_mean
from search.samplers import Strategy
from spaces.experiment import Confirmed, ExperimentSpace, Tried
from spaces.records import Draws, Outcome, State, Trial


@final
class ExperimentStrategy(Strategy):
    """Asks a sampler in each arm; an arm's confirmations wait until its configurations have ended.

    A sampler is asked for a configuration once, and learns the mean of its seeds when all of them
    have ended. A configuration with a seed that diverged counts as diverged: it is unreliable.
    """

    def __init__(self, space: ExperimentSpace, outcomes: Sequence[Outcome]) -> None:
        """`outcomes` as in `Sampler.begin`."""
        self._space = space
        self._draws: dict[tuple[int, int], Draws] = {}
        """Arm and configuration -> its coordinates."""
        self._objectives: dict[tuple[int, int], list[float | None]] = {}
        """Arm and configuration -> the objectives of its seeds that ended."""
        self._ended: Counter[int] = Counter()
        """Arm -> its trials that ended, without confirmations."""
        open_ones: dict[tuple[int, int], Outcome] = {}
        for outcome in outcomes:
            part = space.part_of(outcome.number)
            if isinstance(part, Tried):
                key = part.arm, part.configuration
                self._draws[key] = outcome.draws
                open_ones[key] = replace(self._renumber(part, outcome), objective=None, state="queued")
        complete = self._note(outcome for outcome in outcomes if outcome.state != "queued")
        known = open_ones | {(arm, outcome.number): outcome for arm, outcome in complete}
        self._searches = [
            arm.space.search.sampler.begin(arm.space, [known[key] for key in sorted(known) if key[0] == number])
            for number, arm in enumerate(space.arms)
        ]
        self.look_ahead = min(search.look_ahead for search in self._searches)

    def ready(self, numbers: range) -> range:
        for count, number in enumerate(numbers):
            part = self._space.part_of(number)
            if isinstance(part, Confirmed):
                # All configurations of the arm must have ended; a grid may have fewer than planned.
                planned, size = self._space.configurations, self._searches[part.arm].size
                trials = (planned if size is None else min(size, planned)) * self._space.seeds
                if self._ended[part.arm] < trials:
                    return numbers[:count]
        return numbers

    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers; one without a configuration to train is left out."""
        trials: list[Trial] = []
        sign = self._space.search.objective.sign
        for number in numbers:
            part = self._space.part_of(number)
            if isinstance(part, Confirmed):
                # Ranked are only configurations with an objective of every seed, best mean first.
                objectives = self._objectives.items()
                tried = {configuration: scores for (arm, configuration), scores in objectives if arm == part.arm}
                ranked = list(rank_by_mean(tried, self._space.seeds, sign))
                if part.rank >= len(ranked):
                    continue
                key = part.arm, ranked[part.rank]
            else:
                key = part.arm, part.configuration
            if key not in self._draws:
                drawn = self._searches[part.arm].ask(range(key[1], key[1] + 1))
                if not drawn:
                    continue
                self._draws[key] = drawn[0].draws
            trials.append(self._space.resolve(number, self._draws[key]))
        return trials

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        by_arm: defaultdict[int, list[Outcome]] = defaultdict(list)
        for arm, outcome in self._note(outcomes):
            by_arm[arm].append(outcome)
        for arm, complete in by_arm.items():
            self._searches[arm].tell(complete)

    def _note(self, outcomes: Iterable[Outcome]) -> list[tuple[int, Outcome]]:
        """Remember outcomes; return arm and outcome, numbered in its arm, of each complete one."""
        complete: list[tuple[int, Outcome]] = []
        for outcome in outcomes:
            part = self._space.part_of(outcome.number)
            if isinstance(part, Confirmed):
                continue
            self._ended[part.arm] += 1
            objectives = self._objectives.setdefault((part.arm, part.configuration), [])
            objectives.append(outcome.objective)
            if len(objectives) == self._space.seeds:
                mean = mean_objective(objectives)
                state: State = "diverged" if mean is None else "finished"
                combined = replace(self._renumber(part, outcome), objective=mean, state=state)
                complete.append((part.arm, combined))
        return complete

    def _renumber(self, part: Tried, outcome: Outcome) -> Outcome:
        """Return the outcome with its number and its group in the search of its arm."""
        group = part.configuration // self._space.search.group
        return replace(outcome, number=part.configuration, group=group)
