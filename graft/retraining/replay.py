"""Stored trials trained again, each alone, and compared with the stored numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graft.retraining.comparison import Key, MetricPair, ReplayComparison, compare, relative_difference
from graft.retraining.restored import RestoredTrial, restore_trials
from graft.stored.fingerprints import of_fingerprint
from search.objectives import objective_after
from spaces.errors import StudyError
from spaces.settings import Objective
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A trial that is to be replayed, and the numbers that its replay should give."""

    restored: RestoredTrial
    steps: int
    """The last step of the replay."""
    metrics: Mapping[Key, float | None]
    objective: Objective
    value: float | None
    """The stored objective; None without one, or if the replay stops early."""
    divergence: str | None
    """The error of a divergence at `steps`, or None."""

    @property
    def number(self) -> int:
        """The trial's number."""
        return self.restored.trial.number

    def run(self, device: str | None, watch: Callable[[int], None]) -> ReplayComparison:
        """Train the trial again, on `device` or one like its own; `watch` gets its steps."""
        from workers.engine.retraining import retrain

        where = self.restored.device(device)
        with self.restored.as_it_was_trained():
            reports = retrain(self.restored.trial, steps=self.steps, device=where, watch=watch)
        # If only the kind of the trial's device is known, that kind is compared.
        fingerprint = reports[-1].fingerprint
        assert fingerprint, "a pack says what trained its lanes"
        replayed_step_kind = fingerprint.step_kind if self.restored.row["step_kind"] else where.partition(":")[0]
        objective = None
        if self.value is not None:
            replayed: float | None = None
            for report in reports:
                replayed = objective_after(self.objective, replayed, report)
            difference = relative_difference(self.value, replayed)
            objective = MetricPair(self.steps, "objective", "", "", self.value, replayed, difference)
        return ReplayComparison(
            number=self.number,
            pairs=compare(self.metrics, reports),
            objective=objective,
            divergence=self.divergence,
            replayed_divergence=next((report.error for report in reports if report.state == "diverged"), None),
            trained_step_kind=self.restored.trained_step_kind or replayed_step_kind,
            replayed_step_kind=replayed_step_kind,
            fingerprints=self.restored.fingerprints,
            replayed_under=of_fingerprint(fingerprint),
        )


def read_replays(
    reader: Reader, study: str, numbers: Sequence[int], until: int | None = None, *, accept_changes: bool = False
) -> list[Replay]:
    """Read these trials to replay them, no further than step `until`.

    Raises StudyError for a trial that cannot be replayed, or for other data without
    `accept_changes`.
    """
    restored = restore_trials(reader, study, numbers, accept_changes=accept_changes)
    replays: list[Replay] = []
    for original in restored:
        state, steps = original.row["state"], min(original.steps, until or original.steps)
        metrics = {
            (step, name, variant, condition): value
            for step, name, variant, condition, value in original.metrics
            if step <= steps
        }
        is_whole = steps == original.steps
        divergence = original.row["error"] if state == "diverged" and is_whole else None
        if not metrics and not divergence:
            where = f"{study} ({state}) has no report up to step {steps:,}"
            raise StudyError(f"trial {original.trial.number} of {where}: there is nothing to compare")
        replay = Replay(
            restored=original,
            steps=steps,
            metrics=metrics,
            objective=original.objective,
            value=original.row["objective"] if is_whole else None,
            divergence=divergence,
        )
        replays.append(replay)
    return replays
