"""Stopping policies decide which running trials are not worth going on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spaces.records import Report, Trial
from spaces.settings import Objective

if TYPE_CHECKING:
    from spaces.space import Space


class Monitor(ABC):
    """A stopping policy at work on one study."""

    @abstractmethod
    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Learn from reports that are recorded; `groups` maps each reported number to its group.

        Returns the numbers of running trials to stop now, of these reports or of earlier ones.
        """

    @abstractmethod
    def forget(self, number: int) -> None:
        """The trial ended or was requeued: drop what is kept about it alone (results at rungs stay)."""

    @abstractmethod
    def state(self, number: int) -> Any:
        """What is kept about a running trial alone, as JSON values; None if nothing is."""

    @abstractmethod
    def restore(self, number: int, group: int, state: Any) -> None:
        """A trial goes on where `state` was taken."""


class Selection(NamedTuple):
    """Trials of one pack that are to make room, and those that may be copied; both are running."""

    losers: Sequence[int] = ()
    parents: Sequence[int] = ()
    """Empty only if there are no losers."""


class Breeder(Monitor):
    """A policy that ends trials to start changed copies of better ones in their place."""

    @abstractmethod
    def recall(self, copied: Mapping[int, int]) -> None:
        """After a restart: the trials that were copied -> the last step at which they were.

        They train again up to there, and are not replaced before.
        """

    @abstractmethod
    def select(self, standing: Collection[int], running: Collection[int]) -> Selection:
        """Who is replaced now; asked after `observe`, and asked again with the same answer if nothing came of it.

        `running` is all of one worker's pack; `standing` are those of it whose last report is also where they are:
        only these can be copied, so that a copy starts at a step that is on record.
        """

    @abstractmethod
    def child(self, space: Space, number: int, parents: Sequence[tuple[Trial, int]]) -> Trial:
        """The new trial of this number: it goes on from one of these trials at the step that stands with it."""


class Stopping(ABC):
    """A stopping policy's configuration, a frozen dataclass."""

    @abstractmethod
    def begin(self, objective: Objective) -> Monitor:
        """Start on a study with this objective."""
