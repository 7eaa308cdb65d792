"""Samplers decide which trials to start: the family's abstract class, and the object that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from spaces.records import Outcome, Trial

if TYPE_CHECKING:
    from spaces.space import Space


class Strategy(ABC):
    """A sampler at work on one study. Draws are coordinates u in [0, 1) of the space's values."""

    look_ahead: int = 256
    """The most trials asked before their turn, as those in turn have the shapes of another pack.
    Many keep packs full where structures mix; few let a sampler that learns see more before."""

    in_order: bool = False
    """True if an empty device takes the structure asked for first, because others wait for its
    outcome; else it takes the structure of most trials."""
    size: int | None = None
    """The number of trials that there are; None if there are as many as are asked for."""

    def ready(self, numbers: range) -> range:
        """Return the first numbers, which may be asked now; the others wait for outcomes."""
        return numbers

    @abstractmethod
    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers, if any; numbers ascend, and each is asked once."""

    @abstractmethod
    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from ended trials. Objectives have the user's sign; None: diverged or failed."""


class Sampler(ABC):
    """A sampler's configuration, a frozen dataclass."""

    learns: ClassVar[bool] = True
    """True if `begin` looks at outcomes; else they are not read from the database."""

    @property
    def takes_two_objectives(self) -> bool:
        """True if it can search for two objectives at once, as one that does not learn can."""
        return not self.learns

    @abstractmethod
    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on a study, given earlier trials: ended ones, and open ones in state `queued`."""
