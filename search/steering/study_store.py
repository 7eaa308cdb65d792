"""The storage that the controller needs, for the one study that it steers.

This is the contract between search and storage: `ControlledStudy` of
`storage.control.controlled_study` keeps it in a database, tests keep it in a dictionary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

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


class StudyQueries(Protocol):
    """Questions about the study, mostly asked when a controller begins."""

    def running(self) -> Sequence[TrialStart]:
        """Return the running trials, by number; at first those that another controller left."""
        ...

    def queued(self) -> Sequence[tuple[Sequence[StoredTrial], QueuedTrial]]:
        """Return the trials that wait to start again, by number, with lineages, oldest first."""
        ...

    def outcomes(self, limit: int | None, /) -> Sequence[Outcome]:
        """Return the trials that ended last (None: all), in the order in which they ended."""
        ...

    def reports(self, metric: str, /) -> Sequence[Report]:
        """Return the stored reports of all trials: metrics of this name, by number and step."""
        ...

    def copy_steps(self) -> Mapping[int, int]:
        """Return number -> last step at which another trial took over a trial's state."""
        ...

    def next_number(self) -> int:
        """Return one more than the highest number ever started."""
        ...

    def holes(self) -> Sequence[range]:
        """Return the numbers below `next_number` that were never started, ascending."""
        ...

    def counts(self) -> Mapping[State, int]:
        """Count the trials in each state that occurs."""
        ...

    def best(self, direction: Direction, /) -> tuple[float, int] | None:
        """Return the best objective and its lowest trial number; None before the first one."""
        ...

    def checkpoint_paths(self) -> Collection[str]:
        """Return the checkpoint files that a trial can resume from."""
        ...


class StudyStore(Protocol):
    """The rows of one study, controlled by this process.

    A method returns when what it writes is committed, all of it or nothing. A message about a trial
    counts only with the fence of the trial's newest start. A call that failed may be made again.
    """

    @property
    def queries(self) -> StudyQueries:
        """Questions about the stored study, each answered as of the moment when it is asked."""
        ...

    def start(self, started: Sequence[Trial], worker: str, results: Sequence[TrialResult] = (), /) -> Mapping[int, int]:
        """Write trials as running on `worker`, and results of those whose lanes they take.

        Returns number -> fence of each start. Raises StudyError if one has ended or runs elsewhere.
        """
        ...

    def record(
        self, reports: Sequence[Report], results: Sequence[TrialResult], saved: Sequence[Checkpoint], /
    ) -> Collection[int]:
        """Write reports, the results that they imply, and checkpoints, of starts that still run.

        The two newest checkpoints of a trial are kept. One that is further than any before forgives
        the trial the worker crashes so far. Returns the numbers, of all that were sent, whose fence
        is the trial's own; the others were started again, and their worker should drop them.
        """
        ...

    def end(self, results: Sequence[TrialResult], /) -> None:
        """Write the controller's own decisions on running trials: pruned, or failed."""
        ...

    def release(self, starts: Sequence[TrialStart], /) -> Sequence[QueuedTrial]:
        """Requeue trials that their workers gave back; by number.

        A trial resumes from its newest checkpoint or step 0; reports after that step are deleted.
        """
        ...

    def rescue(self, starts: Sequence[TrialStart], /) -> Sequence[QueuedTrial]:
        """Release trials whose worker crashed, as `release` does, and count a crash for each."""
        ...

    def renew_leases(self, seen: Sequence[WorkerStatus], seconds: float, /) -> Collection[str]:
        """Renew leases for `seconds` from when each worker was last seen, by the database's clock.

        Returns the workers whose leases expired under this controller; an expired lease stays so.
        """
        ...

    def stop_requested(self) -> bool:
        """Return True if anyone, in any process, asked to stop the study under this control."""
        ...

    def set_state(self, state: Literal["running", "stopped", "finished", "failed"], /) -> None:
        """Write the state of the study: running, or how it ended."""
        ...

    def close(self) -> None:
        """Give control and the connection back; what was written stays."""
        ...
