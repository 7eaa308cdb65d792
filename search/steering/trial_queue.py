"""The order in which trials are trained.

An empty device takes a suspected trial first. Then come requeued trials, those asked ahead, and new
ones from the sampler. Trials in quarantine come last, each alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import final

from search.samplers import Strategy
from spaces.records import Trial

STRUCTURE_WAIT_TRIALS = 64
"""A structure that the sampler has not given in this many trials is not waited for."""
COMMON_LOOK_AHEAD_TRIALS = 16
"""The most trials asked to find one of a structure that a device trains for other studies."""
REMEMBERED_STRUCTURES = 4096
"""Structures whose last occurrence is known: with ever new ones a study's memory is bounded."""


@final
class ByStructure:
    """Trials by structure, each structure first in, first out."""

    def __init__(self) -> None:
        self._trials: dict[str, deque[Trial]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def structures(self) -> Iterable[str]:
        """Return the structures that have trials."""
        return self._trials.keys()

    def count(self, structure: str) -> int:
        """Return how many trials of the structure are queued."""
        return len(self._trials.get(structure, ()))

    def put(self, trials: Iterable[Trial]) -> None:
        """Add trials behind those of their structure."""
        for trial in trials:
            self._trials.setdefault(trial.structure, deque()).append(trial)
            self._count += 1

    def pop(self, structure: str) -> Trial | None:
        """Return the structure's first trial; None if there is none."""
        trials = self._trials.get(structure)
        if trials is None:
            return None
        trial = trials.popleft()
        if not trials:
            del self._trials[structure]
        self._count -= 1
        return trial


@final
class TrialQueue:
    """Hands out each trial of a study once, and again when it was requeued.

    A pack trains one structure, but a sampler is asked by number, in ascending order. Trials of
    another structure are kept in memory until an offer asks for that structure; after a restart the
    sampler is asked for these numbers again.
    """

    def __init__(self, strategy: Strategy, numbers: Iterable[range]) -> None:
        """`numbers`: never started yet, ascending."""
        self._strategy = strategy
        size = strategy.size
        parts = numbers
        if size is not None:
            parts = (range(part.start, min(part.stop, size)) for part in numbers)
        self._numbers = deque(part for part in parts if part)
        self._requeued = ByStructure()
        self._suspected: deque[Trial] = deque()
        self._quarantined: deque[Trial] = deque()
        self._ahead = ByStructure()
        self._asked = 0
        self._seen: dict[str, int] = {}
        """Structure -> when it last came up, in trials asked; the oldest first."""

    @property
    def queued(self) -> int:
        """Trials that were started before and wait."""
        return len(self._requeued) + len(self._suspected) + len(self._quarantined)

    @property
    def waiting(self) -> int:
        """Trials left to hand out."""
        return sum(map(len, self._numbers)) + self.queued + len(self._ahead)

    @property
    def empty(self) -> bool:
        """True if there is nothing left to hand out."""
        return not (self._numbers or self.queued or self._ahead)

    def requeue(self, trials: Iterable[Trial]) -> None:
        """Add trials that have to start again; they are handed out before new ones."""
        self._requeued.put(trials)

    def isolate(self, trial: Trial) -> None:
        """Add a suspected trial for the next empty device, where a crash has no other cause."""
        self._suspected.append(trial)

    def quarantine(self, trial: Trial) -> None:
        """Add a trial that is to be trained after all others, when no other is."""
        self._quarantined.append(trial)

    def take_quarantined(self) -> list[Trial]:
        """Return the next trial in quarantine, for an empty device, when no other can run."""
        return [self._quarantined.popleft()] if self._quarantined else []

    def take(
        self, structure: str | None, lanes: int, common: Sequence[str] = (), beside: Collection[str] = ()
    ) -> list[Trial]:
        """Return at most `lanes` trials of one structure; None: the one of most trials, or oldest.

        Fewer if there are no more, if the sampler's `look_ahead` trials of other structures are
        kept, or if the structure has not come up in the last STRUCTURE_WAIT_TRIALS trials, as at
        the end of a group that had it. An empty device takes structures of `common` before all
        others, if the order of trials is free, and leaves those of `beside` to devices that ask for
        new trials.
        """
        if structure is None and lanes and self._suspected:
            return [self._suspected.popleft()]
        if structure is None and lanes:
            structure = self._find_common(common) or self._next(beside)
            if structure is None and not beside:
                structure = self._next() if self._ask(1) else None
        taken: list[Trial] = []
        while structure is not None and len(taken) < lanes:
            trial = self._requeued.pop(structure) or self._ahead.pop(structure)
            if trial is not None:
                taken.append(trial)
                continue
            last_seen = self._seen.setdefault(structure, self._asked)
            if self._asked - last_seen >= STRUCTURE_WAIT_TRIALS or not self._ask(
                min(lanes - len(taken), self._look_ahead_left)
            ):
                break
        return taken

    @property
    def _look_ahead_left(self) -> int:
        return self._strategy.look_ahead - len(self._ahead)

    def _find_common(self, common: Sequence[str]) -> str | None:
        """Return one of these structures that waits, or comes up soon."""
        if self._strategy.in_order or not common:
            return None
        until = self._asked + COMMON_LOOK_AHEAD_TRIALS
        while True:
            structure = max(common, key=self._count)
            if self._count(structure):
                return structure
            if self._asked >= until or not self._ask(min(1, self._look_ahead_left)):
                return None

    def _count(self, structure: str) -> int:
        return self._requeued.count(structure) + self._ahead.count(structure)

    def _next(self, beside: Collection[str] = ()) -> str | None:
        """Return the structure that an empty device should take, none of `beside`."""
        waiting = dict.fromkeys([*self._requeued.structures(), *self._ahead.structures()])
        structures = [structure for structure in waiting if structure not in beside]
        if self._strategy.in_order:
            return next(iter(structures), None)
        return max(structures, key=self._count, default=None)

    def _ask(self, count: int) -> bool:
        """Ask the sampler for at most `count` new trials; return True if there are any now."""
        while count > 0 and self._numbers:
            numbers = self._numbers.popleft()
            ready = self._strategy.ready(numbers[:count])
            if rest := numbers[len(ready) :]:
                self._numbers.appendleft(rest)
            if not ready:
                return False
            asked = self._strategy.ask(ready)
            for trial in asked:
                self._asked += 1
                self._seen.pop(trial.structure, None)
                self._seen[trial.structure] = self._asked
            while len(self._seen) > REMEMBERED_STRUCTURES:
                del self._seen[next(iter(self._seen))]
            self._ahead.put(asked)
            if asked:
                return True
        return False
