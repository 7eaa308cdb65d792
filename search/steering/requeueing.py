"""Trials that lost their worker: back in the queue, or apart from others if they may be the cause.

A crash ends a whole pack and counts for each of its trials, whichever was the cause. So the count
alone fails no trial: after some crashes it is suspected and trains alone on a device, after more it
is quarantined and trains when no other trial does. It fails only when workers crashed in a row that
trained nothing else, while those of other trials lived. Workers that left, kills of the launcher
and lost machines count against no trial.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import final

from search.steering.ledger import Ledger
from search.steering.study_store import StudyStore
from search.steering.trial_queue import TrialQueue
from spaces.records import Checkpoint, QueuedTrial, Report, Trial, TrialResult

SUSPECTED_AFTER = 3
"""Worker crashes since its last checkpoint after which a trial is suspected: it gets the next empty
device to itself, so that the next crash shows if it is the cause."""
QUARANTINED_AFTER = 5
"""Worker crashes after which a trial is trained only when no other is. A crash of a launch counts
if nothing else was running."""
ALONE = 2
"""Crashes in a row of workers with one trial alone after which it is the cause. As many launches
must crash beyond QUARANTINED_AFTER, since only then was nothing else in the process."""
_NO_WORKER = "nobody"


@dataclass
class _Alone:
    """Crashes in a row of workers that trained one suspected trial and nothing else."""

    healthy_before: int
    """Reports of healthy trials before the first of them."""
    crashes: int = 0


@final
class Requeueing:
    """Requeues running trials, and counts the crashes of their workers."""

    def __init__(self, study: StudyStore, ledger: Ledger, queue: TrialQueue) -> None:
        self._study = study
        self._ledger = ledger
        self._queue = queue
        self._crashes: dict[int, int] = {}
        """Crashes of the trials that are queued again."""
        self._alone: dict[int, _Alone] = {}
        """Crashes alone, by trial, since a worker of unsuspected trials crashed."""
        self._healthy_reports = 0
        """Reports of trials that are not suspected, or that ended."""

    def release(self, numbers: Collection[int]) -> None:
        """Requeue trials that their worker does not train any more, which is no trial's fault."""
        if numbers:
            queued = self._study.release(self._ledger.running.starts(numbers))
            self._requeue(numbers, queued, is_cause=False)

    def rescue(self, numbers: Collection[int]) -> None:
        """Requeue trials whose worker crashed; one of them may be the cause."""
        if numbers:
            # A worker crashed without a suspected trial, so the cause may be none of those.
            if not self.is_suspected(numbers):
                self._alone.clear()
            is_cause = False
            if len(numbers) == 1:
                # A trial that crashes alone again, while others train well, must be the cause.
                [number] = numbers
                alone = self._alone.setdefault(number, _Alone(self._healthy_reports))
                alone.crashes += 1
                others_lived = self._healthy_reports > alone.healthy_before
                is_cause = alone.crashes >= ALONE and (others_lived or self.is_last(number))
            queued = self._study.rescue(self._ledger.running.starts(numbers))
            self._requeue(numbers, queued, is_cause=is_cause)

    def is_last(self, number: int) -> bool:
        """Return True if no other trial, running or not, is left to compare this one with."""
        return self._queue.empty and self._ledger.running.numbers() <= {number}

    def note_reports(self, reports: Sequence[Report]) -> None:
        """Count the reports of trials that are not suspected, or that end: their workers live."""
        self._healthy_reports += sum(
            report.state != "running" or not self.is_suspected([report.number]) for report in reports
        )

    def route(self, trial: Trial, known: QueuedTrial, *, is_cause: bool) -> None:
        """Requeue, isolate, quarantine or fail a queued trial, by the crashes of its workers.

        `is_cause`: nothing else caused the last ones, while other trials trained well.
        """
        trial = replace(trial, fence=0, checkpoints=known.checkpoints)
        if known.crashes >= QUARANTINED_AFTER and is_cause:
            # Only running trials can end, so it is started on no worker.
            [started] = self._ledger.start([trial], _NO_WORKER)
            died = f"{known.crashes} workers died while they trained it"
            error = f"{died}, at last {ALONE} alone with it, and others did not"
            result = TrialResult(number=trial.number, state="failed", objective=None, error=error, fence=started.fence)
            self._study.end([result])
            self._ledger.close([result])
            return
        self._crashes[trial.number] = known.crashes
        if known.crashes >= QUARANTINED_AFTER:
            self._queue.quarantine(trial)
        elif known.crashes >= SUSPECTED_AFTER:
            self._alone.setdefault(trial.number, _Alone(self._healthy_reports))
            self._queue.isolate(trial)
        else:
            self._queue.requeue([trial])

    def note_start(self, trials: Sequence[Trial]) -> None:
        """Note that these trials run now, with their crashes so far."""
        for trial in trials:
            self._ledger.running[trial.number].crashes = self._crashes.pop(trial.number, 0)

    def forgive(self, saved: Sequence[Checkpoint]) -> None:
        """Clear the trials that got further than ever before: they crashed no worker."""
        for checkpoint in saved:
            running = self._ledger.running[checkpoint.number]
            if checkpoint.step > running.trial.checkpoint_step:
                running.crashes = 0
                self._alone.pop(checkpoint.number, None)

    def is_suspected(self, numbers: Collection[int]) -> bool:
        """Return True if one of these running trials must train alone."""
        return any(self._ledger.running[number].crashes >= SUSPECTED_AFTER for number in numbers)

    def _requeue(self, numbers: Collection[int], queued: Sequence[QueuedTrial], *, is_cause: bool) -> None:
        """Move trials that are written as queued from the running ones to the queue."""
        known = {entry.number: entry for entry in queued}
        for number in sorted(numbers):
            trial = self._ledger.remove(number).trial
            self.route(trial, known.get(number, QueuedTrial(number)), is_cause=is_cause)
