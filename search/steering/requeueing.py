"""Trials that lost their worker: back in the queue, or apart from others if they may have crashed it.

A crash takes a whole pack along, so that innocent trials count it too. Hence they are not failed by number: the
suspected one is first trained apart, and fails only when a worker crashed that trained nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

from search.steering.ledger import Ledger
from search.steering.study_store import StudyStore
from search.steering.trial_queue import TrialQueue
from spaces.records import Checkpoint, QueuedTrial, Trial, TrialResult

SUSPECTED_AFTER = 3
"""Worker crashes since its last checkpoint after which a trial is suspected: it gets the next empty device to itself,
so that the next crash tells whether it is the cause."""
QUARANTINED_AFTER = 5
"""Worker crashes after which a trial is trained only when no other is, and fails if its worker crashes once more while
that trains nothing else. A launch that crashed counts if nothing else was running; then there must be one crash more,
because a person may have killed the launch for other reasons."""
_NO_WORKER = "nobody"


@final
class Requeueing:
    """Requeues running trials, and knows of each how often its workers crashed."""

    def __init__(self, study: StudyStore, ledger: Ledger, queue: TrialQueue) -> None:
        self._study = study
        self._ledger = ledger
        self._queue = queue
        self._crashes: dict[int, int] = {}
        """Of the trials that are queued again."""

    def release(self, numbers: Collection[int]) -> None:
        """Requeue trials that their worker does not train any more, which is no trial's fault."""
        if numbers:
            self._requeue(numbers, self._study.release(self._ledger.running.starts(numbers)), alone=False)

    def rescue(self, numbers: Collection[int]) -> None:
        """Requeue trials whose worker crashed; one of them may be the cause."""
        if numbers:
            queued = self._study.rescue(self._ledger.running.starts(numbers))
            self._requeue(numbers, queued, alone=len(numbers) == 1)

    def resume(self, trial: Trial, known: QueuedTrial, *, alone: bool) -> None:
        """Queue a trial by the crashes of its workers; `alone`: nothing else can be the cause of the last one."""
        trial = replace(trial, fence=0, checkpoints=known.checkpoints)
        if known.crashes >= QUARANTINED_AFTER and alone:
            self._fail(trial, known.crashes)
            return
        self._crashes[trial.number] = known.crashes
        if known.crashes >= QUARANTINED_AFTER:
            self._queue.quarantine(trial)
        elif known.crashes >= SUSPECTED_AFTER:
            self._queue.isolate(trial)
        else:
            self._queue.requeue([trial])

    def note_start(self, trials: Sequence[Trial]) -> None:
        """These trials run now: what is known of their crashes goes with them."""
        for trial in trials:
            self._ledger.running[trial.number].crashes = self._crashes.pop(trial.number, 0)

    def forgive(self, saved: Sequence[Checkpoint]) -> None:
        """Trials that got further than ever before are not what their workers crashed of."""
        for one in saved:
            running = self._ledger.running[one.number]
            if one.step > running.trial.checkpoint_step:
                running.crashes = 0

    def is_suspected(self, numbers: Collection[int]) -> bool:
        """Whether one of these running trials must train alone."""
        return any(self._ledger.running[number].crashes >= SUSPECTED_AFTER for number in numbers)

    def _requeue(self, numbers: Collection[int], queued: Sequence[QueuedTrial], *, alone: bool) -> None:
        """Move trials that are written as queued from the running ones to the queue."""
        known = {one.number: one for one in queued}
        for number in sorted(numbers):
            self.resume(self._ledger.remove(number).trial, known.get(number, QueuedTrial(number)), alone=alone)

    def _fail(self, trial: Trial, crashes: int) -> None:
        """End a queued trial that crashes its workers. Only running trials can end, so it is started on no worker."""
        [started] = self._ledger.start([trial], _NO_WORKER)
        error = f"{crashes} workers died while they trained it, at last alone with it"
        result = TrialResult(number=trial.number, state="failed", objective=None, error=error, fence=started.fence)
        self._study.end([result])
        self._ledger.close([result])
