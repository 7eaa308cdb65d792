"""A transfer's trials in their order: searches on every task first, then what they found, trained on all tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

from search.objectives import better
from search.samplers import Strategy
from spaces.errors import GraftError
from spaces.records import Outcome, Trial
from spaces.space import Space
from spaces.transfer import StageOne, StageTwo, TransferSpace


def begin(space: Space, history: Sequence[Outcome]) -> Strategy:
    """The strategy of a study that is new or goes on; `history` as `Sampler.begin` has it."""
    return Staged(space, history) if isinstance(space, TransferSpace) else space.search.sampler.begin(space, history)


@final
class Staged(Strategy):
    """Asks a sampler of its own on each task; a source's trials of stage two wait until its search has ended.

    The searches start first, as all else waits for them. A source whose search found nothing, and a target that cannot
    have an architecture, have no trials: the cells stay empty.
    """

    in_order = True

    def __init__(self, space: TransferSpace, history: Sequence[Outcome]) -> None:
        self._space = space
        self._ended: Counter[int] = Counter()
        self._best: dict[int, Outcome] = {}
        """Domain -> the best trial of its search so far."""
        before = self._by_domain(history)
        self._searches = {
            number: domain.searched.search.sampler.begin(domain.searched, before[number])
            for number, domain in enumerate(space.domains)
            if domain.searched
        }
        self.look_ahead = min(search.look_ahead for search in self._searches.values())
        self._note(outcome for outcome in history if outcome.state != "queued")

    def ready(self, numbers: range) -> range:
        for count, number in enumerate(numbers):
            place = self._space.stage_of(number)
            if isinstance(place, StageTwo) and place.source is not None and not self._is_over(place.source):
                return numbers[:count]
        return numbers

    def ask(self, numbers: range) -> list[Trial]:
        return [trial for number in numbers for trial in self._trial(number)]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._note(outcomes)
        for domain, own in self._by_domain(outcomes).items():
            self._searches[domain].tell(own)

    def _is_over(self, source: int) -> bool:
        size = self._searches[source].size
        return self._ended[source] >= (self._space.tried if size is None else min(size, self._space.tried))

    def _trial(self, number: int) -> Iterator[Trial]:
        place = self._space.stage_of(number)
        if isinstance(place, StageOne):
            for trial in self._searches[place.domain].ask(range(place.number, place.number + 1)):
                yield self._space.renumber(place.domain, trial)
        elif place.source is None:
            yield self._space.carry(number, None, ())
        elif place.source in self._best:
            best = self._best[place.source]
            found = self._space.resolve(best.number, best.draws)
            try:
                yield self._space.carry(number, found, best.architectures)
            except GraftError:
                return

    def _note(self, outcomes: Sequence[Outcome] | Iterator[Outcome]) -> None:
        for outcome in outcomes:
            place = self._space.stage_of(outcome.number)
            if isinstance(place, StageTwo):
                continue
            self._ended[place.domain] += 1
            known, objective = self._best.get(place.domain), self._space.objective_of(outcome.number)
            if outcome.objective is None:
                continue
            if known is None or known.objective is None or better(objective, outcome.objective, known.objective):
                self._best[place.domain] = outcome

    def _by_domain(self, outcomes: Sequence[Outcome]) -> defaultdict[int, list[Outcome]]:
        """The outcomes of stage one, numbered as the domain's own search has them."""
        found: defaultdict[int, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            place = self._space.stage_of(outcome.number)
            if isinstance(place, StageOne):
                found[place.domain].append(replace(outcome, number=place.number, group=place.number))
        return found
