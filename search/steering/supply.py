"""Where the next trials come from: returned ones, ones asked ahead, new ones from the sampler; sorted by structure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import final

from search.samplers import Strategy
from spaces.records import Trial

RARE = 64
"""A structure that has not come up in this many trials is not waited for."""
REMEMBERED = 4096
"""Structures of which it is known when they last came up."""


@final
class Shelf:
    """Trials by structure, each structure first in, first out."""

    def __init__(self) -> None:
        self._trials: dict[str, deque[Trial]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def structures(self) -> Iterable[str]:
        """The structures that have trials."""
        return self._trials.keys()

    def count(self, structure: str) -> int:
        """How many trials of the structure there are."""
        return len(self._trials.get(structure, ()))

    def put(self, trials: Iterable[Trial]) -> None:
        """Add trials behind those of their structure."""
        for trial in trials:
            self._trials.setdefault(trial.structure, deque()).append(trial)
            self._count += 1

    def pop(self, structure: str) -> Trial | None:
        """The structure's first trial; None if there is none."""
        trials = self._trials.get(structure)
        if trials is None:
            return None
        trial = trials.popleft()
        if not trials:
            del self._trials[structure]
        self._count -= 1
        return trial


@final
class Supply:
    """Hands out each trial of a study once, and again when it was given back.

    A sampler is asked by number, in ascending order. Trials that do not fit the structure wanted are held for the next
    offer that they fit; they are nowhere but in memory and are asked for again by number after a restart.
    """

    def __init__(self, strategy: Strategy, numbers: Iterable[range]) -> None:
        """`numbers`: never started yet, ascending."""
        self._strategy = strategy
        self._numbers = deque(part for part in (_below(part, strategy.size) for part in numbers) if part)
        self._returned = Shelf()
        self._suspects: deque[Trial] = deque()
        self._quarantined: deque[Trial] = deque()
        self._held = Shelf()
        self._asked = 0
        self._seen: dict[str, int] = {}
        """Structure -> when it last came up, in trials asked; the oldest first."""

    @property
    def queued(self) -> int:
        """Trials that were given back and wait."""
        return len(self._returned) + len(self._suspects) + len(self._quarantined)

    @property
    def waiting(self) -> int:
        """Trials left to hand out."""
        return sum(map(len, self._numbers)) + self.queued + len(self._held)

    @property
    def empty(self) -> bool:
        """Whether there is nothing left to hand out."""
        return not (self._numbers or self.queued or self._held)

    def give_back(self, trials: Iterable[Trial]) -> None:
        """Take trials back that have to start again; they are handed out before new ones."""
        self._returned.put(trials)

    def isolate(self, trial: Trial) -> None:
        """Take a trial back that is to have a device of its own: the next one that is empty."""
        self._suspects.append(trial)

    def quarantine(self, trial: Trial) -> None:
        """Take a trial back that is to train when nothing else does, after all others."""
        self._quarantined.append(trial)

    def last(self) -> list[Trial]:
        """The next trial in quarantine, for an empty device; asked when `take` gives nothing and nothing trains."""
        return [self._quarantined.popleft()] if self._quarantined else []

    def take(self, structure: str | None, lanes: int) -> list[Trial]:
        """Up to `lanes` trials of one structure (None: of the one with most trials waiting, or that waits longest).

        Fewer when there are no more; when the sampler's `look_ahead` of other structures are held; or when the
        structure has not come up in the last RARE trials, as at the end of a group that had it.
        """
        if structure is None and lanes and self._suspects:
            return [self._suspects.popleft()]
        if structure is None and lanes:
            structure = self._next() or (self._next() if self._ask(1) else None)
        taken: list[Trial] = []
        while structure is not None and len(taken) < lanes:
            trial = self._returned.pop(structure) or self._held.pop(structure)
            if trial is not None:
                taken.append(trial)
            elif not self._comes_up(structure) or not self._ask(min(lanes - len(taken), self._room)):
                break
        return taken

    @property
    def _room(self) -> int:
        return self._strategy.look_ahead - len(self._held)

    def _comes_up(self, structure: str) -> bool:
        return self._asked - self._seen.setdefault(structure, self._asked) < RARE

    def _next(self) -> str | None:
        """The structure that an empty device should take."""
        structures = {**dict.fromkeys(self._returned.structures()), **dict.fromkeys(self._held.structures())}
        if self._strategy.in_order:
            return next(iter(structures), None)
        return max(structures, key=lambda one: self._returned.count(one) + self._held.count(one), default=None)

    def _ask(self, count: int) -> bool:
        """Ask the sampler for at most `count` new trials; whether there are any now."""
        while count > 0 and self._numbers:
            numbers = self._numbers.popleft()
            ready = self._strategy.ready(numbers[:count])
            if rest := numbers[len(ready) :]:
                self._numbers.appendleft(rest)
            if not ready:
                return False
            if asked := self._strategy.ask(ready):
                self._hold(asked)
                return True
        return False

    def _hold(self, asked: Sequence[Trial]) -> None:
        for trial in asked:
            self._asked += 1
            self._seen.pop(trial.structure, None)
            self._seen[trial.structure] = self._asked
        while len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._held.put(asked)


def _below(numbers: range, size: int | None) -> range:
    return numbers if size is None else range(numbers.start, min(numbers.stop, size))
