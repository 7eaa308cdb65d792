"""An experiment's trials in their order: each arm's configurations from every seed, then the best of them again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from search.objectives import mean_objective, rank_by_mean
from search.samplers import Strategy
from spaces.errors import StudyError
from spaces.experiment import Confirmed, ExperimentSpace, Tried
from spaces.records import Draws, Outcome, State, Trial


@final
class ExperimentStrategy(Strategy):
    """Asks a sampler of its own in each arm; an arm's confirmations wait until its configurations have ended.

    A sampler is asked for a configuration once, and learns the mean of its seeds when all of them have ended; one with
    a seed that diverged counts as diverged, for it is no choice that could be relied on.
    """

    def __init__(self, space: ExperimentSpace, outcomes: Sequence[Outcome]) -> None:
        """`outcomes` as `Sampler.begin` has it. Raises StudyError for a stopping policy that makes copies."""
        if any(policy.begin(space.search.objective).makes_copies for policy in space.search.stopping):
            raise StudyError(
                "search.stopping: a copy in a population has no seed of its own, so that no arm can own it"
            )
        self._space = space
        self._draws: dict[tuple[int, int], Draws] = {}
        """Arm and configuration -> its coordinates."""
        self._objectives: dict[tuple[int, int], list[float | None]] = {}
        """Arm and configuration -> the objectives of its seeds that ended."""
        self._ended: Counter[int] = Counter()
        """Arm -> its trials that ended, confirmations apart."""
        open_ones: dict[tuple[int, int], Outcome] = {}
        for outcome in outcomes:
            part = space.part_of(outcome.number)
            if isinstance(part, Tried):
                key = part.arm, part.configuration
                self._draws[key] = outcome.draws
                open_ones[key] = replace(outcome, number=part.configuration, objective=None, state="queued")
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
                # All configurations of the arm must have ended; a grid may have fewer than were planned.
                planned, size = self._space.configurations, self._searches[part.arm].size
                trials = (planned if size is None else min(size, planned)) * self._space.seeds
                if self._ended[part.arm] < trials:
                    return numbers[:count]
        return numbers

    def ask(self, numbers: range) -> list[Trial]:
        asked = ((number, self._find_draws(self._space.part_of(number))) for number in numbers)
        return [self._space.resolve(number, draws) for number, draws in asked if draws is not None]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        by_arm: defaultdict[int, list[Outcome]] = defaultdict(list)
        for arm, outcome in self._note(outcomes):
            by_arm[arm].append(outcome)
        for arm, own in by_arm.items():
            self._searches[arm].tell(own)

    def _find_draws(self, part: Tried | Confirmed) -> Draws | None:
        """Return the coordinates of a configuration, asked for if it is new; None where there is no such one."""
        if isinstance(part, Confirmed):
            # Ranked are the configurations of which every seed has an objective, the best mean first.
            own = {number: found for (arm, number), found in self._objectives.items() if arm == part.arm}
            ranked = list(rank_by_mean(own, self._space.seeds, self._space.search.objective.sign))
            return self._draws[part.arm, ranked[part.rank]] if part.rank < len(ranked) else None
        key = part.arm, part.configuration
        if key not in self._draws:
            found = self._searches[part.arm].ask(range(part.configuration, part.configuration + 1))
            if not found:
                return None
            self._draws[key] = found[0].draws
        return self._draws[key]

    def _note(self, outcomes: Iterable[Outcome]) -> list[tuple[int, Outcome]]:
        """Remember outcomes; return arm and outcome of each configuration that is complete now.

        Such an outcome is numbered within its arm.
        """
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
                complete.append((part.arm, replace(outcome, number=part.configuration, objective=mean, state=state)))
        return complete
