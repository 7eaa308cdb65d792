"""What the controller needs of storage, for one study."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from spaces.records import (
    Checkpoint,
    Outcome,
    QueuedTrial,
    Report,
    State,
    StoredTrial,
    Trial,
    TrialResult,
    TrialStart,
    WorkerStatus,
)
from spaces.settings import Direction


class Memory(Protocol):
    """The rows of one study, claimed by this process. A method returns when what it writes is committed."""

    def start(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = (), /) -> Mapping[int, int]:
        """Write trials as running on `worker`, new or queued ones, and verdicts on those whose places they take.

        All or nothing. Returns number -> fence of each.
        """
        ...

    def record(
        self, reports: Sequence[Report], endings: Sequence[TrialResult], saved: Sequence[Checkpoint], /
    ) -> object:
        """Write reports, the endings that they imply, and checkpoints, all or nothing; of starts that still run."""
        ...

    def end(self, endings: Sequence[TrialResult], /) -> None:
        """Write the controller's own verdicts on running trials."""
        ...

    def running(self) -> Sequence[TrialStart]:
        """The trials that are written as running: before the first exchange, those that another controller left."""
        ...

    def release(self, held: Sequence[TrialStart], /) -> Sequence[QueuedTrial]:
        """Put trials that were given back in the queue; they lose the reports after their newest checkpoints."""
        ...

    def rescue(self, held: Sequence[TrialStart], /) -> Sequence[QueuedTrial]:
        """As `release`, for trials whose worker died: that is counted."""
        ...

    def queued(self) -> Sequence[tuple[Sequence[StoredTrial], QueuedTrial]]:
        """The trials that wait to be started again, each with its line of descent: the first first, itself last."""
        ...

    def leases(self, heard: Sequence[WorkerStatus], term: float, /) -> Collection[str]:
        """Let workers hold their trials for `term` seconds from when they were heard of; those whose time is over."""
        ...

    def outcomes(self, limit: int | None, /) -> Sequence[Outcome]:
        """The trials that ended last (None: all), in the order in which they ended."""
        ...

    def reports(self, metric: str, /) -> Sequence[Report]:
        """Stored reports of the trials that ended: the metrics of this name, steps ascending within a trial."""
        ...

    def copied(self) -> Mapping[int, int]:
        """The trials whose state others took over -> the last step at which one did."""
        ...

    def created(self) -> int:
        """One more than the highest number ever started."""
        ...

    def holes(self) -> Sequence[range]:
        """The numbers below `created` that were never started, ascending."""
        ...

    def counts(self) -> Mapping[State, int]:
        """How many trials are in each state that occurs."""
        ...

    def best(self, direction: Direction, /) -> tuple[float, int] | None:
        """The best objective and its trial's number, the lowest of several; None before the first one."""
        ...

    def stop_requested(self) -> bool:
        """Whether someone asked the study to stop."""
        ...
