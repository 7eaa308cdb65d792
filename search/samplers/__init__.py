"""Samplers decide what to try. The family's abstract class and the object that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from spaces.records import Outcome, Trial

if TYPE_CHECKING:
    from spaces.space import Space


class Strategy(ABC):
    """A sampler at work on one study. Draws are coordinates u in [0, 1); the space turns them into values."""

    look_ahead: int = 256
    """How many trials may be asked before their turn, because those in turn have the shapes of another pack. Many keep
    packs full where structures mix; few let a sampler that learns see more before it is asked."""

    in_order: bool = False
    """Whether an empty device takes the structure asked for first, where others wait for its outcome; else the one with
    most trials."""
    size: int | None = None
    """Number of trials there are; None: as many as are asked for."""

    def ready(self, numbers: range) -> range:
        """Return the numbers, from the first on, that may be asked for now; the others wait for outcomes."""
        return numbers

    @abstractmethod
    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers, in order; a number may have none.

        Numbers ascend from call to call, below `size`, and each is asked once.
        """

    @abstractmethod
    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended. Objectives are in the user's direction; None: diverged or failed."""


class Sampler(ABC):
    """A sampler's configuration, a frozen dataclass."""

    learns: ClassVar[bool] = True
    """Whether `begin` looks at outcomes; where it does not, they are not read from the database."""

    @property
    def takes_two_objectives(self) -> bool:
        """Whether it can search for two objectives at once, as one that does not learn can."""
        return not self.learns

    @abstractmethod
    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on a study; the seed is `space.search.seed`.

        `outcomes` is what was started before: trials that ended, and open ones in state `queued`.
        """
