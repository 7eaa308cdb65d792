"""Stopping policies decide which running trials are not worth going on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from spaces.records import Report
from spaces.settings import Objective


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


class Stopping(ABC):
    """A stopping policy's configuration, a frozen dataclass."""

    @abstractmethod
    def begin(self, objective: Objective) -> Monitor:
        """Start on a study with this objective."""
