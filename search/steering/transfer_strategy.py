"""A transfer's trials in order: searches on every source task, then what they found on targets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

from search.samplers import Strategy
from spaces.errors import GraftError
from spaces.records import Outcome, Trial
from spaces.transfer import StageOne, StageTwo, TransferSpace


@final
class TransferStrategy(Strategy):
    """Asks a sampler on each source task; a source's trials of stage two wait for its search.

    The searches start first, as all else waits for them. A source whose search found nothing, and a
    target that cannot have an architecture, have no trials: the cells stay empty.
    """

    in_order = True

    def __init__(self, space: TransferSpace, outcomes: Sequence[Outcome]) -> None:
        self._space = space
        self._ended: Counter[int] = Counter()
        """Domain -> trials of its search that ended."""
        self._best: dict[int, Outcome] = {}
        """Domain -> the best trial of its search so far."""
        earlier = self._by_domain(outcomes)
        self._searches = {
            number: domain.searched.search.sampler.begin(domain.searched, earlier[number])
            for number, domain in enumerate(space.domains)
            if domain.searched
        }
        self.look_ahead = min(search.look_ahead for search in self._searches.values())
        self._note(outcome for outcome in outcomes if outcome.state != "queued")

    def ready(self, numbers: range) -> range:
        for count, number in enumerate(numbers):
            stage = self._space.stage_of(number)
            if isinstance(stage, StageTwo) and stage.source is not None:
                # All trials of the source's search must have ended; a grid may have fewer.
                planned, size = self._space.tried, self._searches[stage.source].size
                if self._ended[stage.source] < (planned if size is None else min(size, planned)):
                    return numbers[:count]
        return numbers

    def ask(self, numbers: range) -> list[Trial]:
        trials: list[Trial] = []
        for number in numbers:
            stage = self._space.stage_of(number)
            if isinstance(stage, StageOne):
                drawn = self._searches[stage.domain].ask(range(stage.number, stage.number + 1))
                trials += [self._space.renumber(stage.domain, trial) for trial in drawn]
            elif stage.source is None:
                trials.append(self._space.carry(number, None, ()))
            elif stage.source in self._best:
                best = self._best[stage.source]
                if stage.form != self._space.forms[0] and not best.splines:
                    continue  # it learned nothing that has forms, and would be the same trial again
                winner = self._space.resolve(best.number, best.draws)
                try:
                    trials.append(self._space.carry(number, winner, best.splines))
                except GraftError:
                    continue  # the target cannot have this architecture: its cell stays empty
        return trials

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._note(outcomes)
        for domain, renumbered in self._by_domain(outcomes).items():
            self._searches[domain].tell(renumbered)

    def _note(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            stage = self._space.stage_of(outcome.number)
            if isinstance(stage, StageTwo):
                continue
            self._ended[stage.domain] += 1
            if outcome.objective is None:
                continue
            objective = self._space.search_of(outcome.number).objective
            best = self._best.get(stage.domain)
            known = best.objective if best else None
            if known is None or objective.is_better(outcome.objective, known):
                self._best[stage.domain] = outcome

    def _by_domain(self, outcomes: Sequence[Outcome]) -> defaultdict[int, list[Outcome]]:
        """Return the outcomes of stage one, numbered as in the domain's own search."""
        by_domain: defaultdict[int, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            stage = self._space.stage_of(outcome.number)
            if isinstance(stage, StageOne):
                renumbered = replace(outcome, number=stage.number, group=stage.number)
                by_domain[stage.domain].append(renumbered)
        return by_domain
