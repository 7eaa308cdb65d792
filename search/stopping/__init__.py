"""Stopping policies decide which running trials are not worth training further."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spaces.errors import StudyError
from spaces.experiment import ExperimentSpace
from spaces.records import Report, State, Trial
from spaces.settings import Objective

if TYPE_CHECKING:
    from spaces.space import Space


class Copy(NamedTuple):
    """A new trial that takes over the state of a running one, in the lane of another."""

    replaced: int
    """Number of the trial whose lane it takes; that one is pruned."""
    trial: Trial


class Monitor(ABC):
    """A stopping policy at work on one study."""

    compares: str | None = None
    """The metric by which it compares a trial with earlier ones, whose reports it gets after a
    restart; None if it looks at running trials alone."""
    makes_copies: bool = False
    """True if `copies` may give any."""

    @abstractmethod
    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Learn from recorded reports and their trials' `groups`; return running trials to stop."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Drop what is kept about a trial that ended or was requeued, but its results at rungs."""

    @abstractmethod
    def state(self, number: int) -> Any:
        """Return the state of a running trial, as JSON values for a checkpoint; or None."""

    @abstractmethod
    def restore(self, number: int, group: int, state: Any) -> None:
        """Take up a trial that resumes from the checkpoint that `state` was written with."""

    def recall_reports(self, reports: Sequence[Report], states: Mapping[int, State]) -> None:
        """Learn again from stored reports, after a restart, if it `compares`; as if they came now.

        `reports`: of all trials by number and step, as far as the history keeps them. `states`: of
        the ended trials; the others go on from their last report.
        """
        numbers = {report.number for report in reports}
        self.observe(reports, dict.fromkeys(numbers, 0))
        for number in numbers:
            self.forget(number)

    def recall_copied(self, copied: Mapping[int, int]) -> None:  # noqa: B027 - most policies make none
        """Take over copied trials with their last steps, after a restart, if it `makes_copies`."""

    def copies(
        self, space: Space, pack: Mapping[int, tuple[Trial, int]], reported: Collection[int], first: int
    ) -> Sequence[Copy]:
        """Return copies to start now, numbered from `first`; asked after `observe`.

        `pack`: number -> trial and step of all running trials of one worker. `reported`: those of
        them that reported just now; only these are copied, so that a copy starts at a step on
        record. If an answer was lost, as when the database failed, the same question gets the same
        answer.
        """
        return ()


class Stopping(ABC):
    """A stopping policy's configuration, a frozen dataclass."""

    @abstractmethod
    def begin(self, objective: Objective) -> Monitor:
        """Start on a study with this objective."""


def begin_policies(space: Space) -> list[Monitor]:
    """Begin a space's policies; raises StudyError for such that cannot work together, or not there."""
    monitors: list[Monitor] = [policy.begin(space.search.objective) for policy in space.search.stopping]
    lasting = [monitor for monitor in monitors if monitor.compares or monitor.makes_copies]
    if len(lasting) > 1 and any(monitor.makes_copies for monitor in lasting):
        raise StudyError(
            "search.stopping: population stands alone or with patience; its copies start where others compare"
        )
    if space.search.history == "last" and any(monitor.compares for monitor in monitors):
        raise StudyError("search.history: 'last' forgets what stopping policies compare with; use thin or full")
    if isinstance(space, ExperimentSpace) and any(monitor.makes_copies for monitor in monitors):
        raise StudyError("search.stopping: a copy in a population has no seed of its own, so that no arm can own it")
    return monitors
