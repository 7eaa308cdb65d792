"""One study's rows, as its controller writes and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from storage.store import Store


@dataclass(frozen=True)
class StudyMemory:
    """A store bound to one study that this process has claimed; each method is the store's of that name."""

    store: Store
    study_id: int

    def start(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = ()) -> dict[int, int]:
        """Write trials as running on `worker`, and verdicts on those whose places they take; number -> fence."""
        return self.store.start(self.study_id, trials, worker, endings)

    def record(
        self, reports: Sequence[Report], endings: Sequence[TrialResult], saved: Sequence[Checkpoint]
    ) -> frozenset[int]:
        """Write reports, verdicts on their trials, and checkpoints; the numbers whose fence is the trial's own."""
        return self.store.record(self.study_id, reports, endings, saved)

    def end(self, endings: Sequence[TrialResult]) -> None:
        """Write the controller's own verdicts."""
        self.store.end(self.study_id, endings)

    def running(self) -> list[TrialStart]:
        """The trials in training."""
        return self.store.running(self.study_id)

    def release(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        """Put trials that were given back in the queue."""
        return self.store.release(self.study_id, held)

    def rescue(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        """Put trials whose worker died in the queue."""
        return self.store.rescue(self.study_id, held)

    def queued(self) -> list[tuple[list[StoredTrial], QueuedTrial]]:
        """The trials that wait, each with its line of descent."""
        return self.store.queued(self.study_id)

    def leases(self, heard: Sequence[WorkerStatus], term: float) -> list[str]:
        """Renew the leases of workers, and say whose are over."""
        return self.store.leases(self.study_id, heard, term)

    def outcomes(self, limit: int | None) -> list[Outcome]:
        """The trials that ended last, in the order in which they ended."""
        return self.store.outcomes(self.study_id, limit)

    def reports(self, metric: str) -> list[Report]:
        """The kept reports of trials that ended, with the metrics of this name."""
        return self.store.reports(self.study_id, metric)

    def copied(self) -> dict[int, int]:
        """The trials whose state others took over, and when the last one did."""
        return self.store.copied(self.study_id)

    def created(self) -> int:
        """The number of the next new trial."""
        return self.store.created(self.study_id)

    def holes(self) -> list[range]:
        """The numbers below the next new one that were never started."""
        return self.store.holes(self.study_id)

    def counts(self) -> dict[State, int]:
        """How many trials are in each state that occurs."""
        return self.store.counts(self.study_id)

    def best(self, direction: Direction) -> tuple[float, int] | None:
        """The best objective and its trial's number."""
        return self.store.best(self.study_id, direction)

    def stop_requested(self) -> bool:
        """Whether anyone asked the study to stop since it was claimed."""
        return self.store.stop_requested(self.study_id)
