"""The writes that a trial's holder alone may make, and what is in the rows afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spaces.records import Checkpoint, State, TrialResult
from storage import ControlledStudy
from tests.support.databases import held, make_report, make_trial

ROWS = (
    "SELECT number, state, fence, worker, steps, objective, deaths, error FROM trials ORDER BY number",
    "SELECT trial_id, step, name, value FROM metrics ORDER BY 1, 2, 3",
    "SELECT trial_id, step, fence, path FROM checkpoints ORDER BY 1, 2",
    "SELECT id, steps FROM studies",
)


@dataclass(frozen=True)
class Write:
    """A write on trial 0 by who started it as `fence`; what must be true of the row if it was let through."""

    act: Callable[[ControlledStudy, int], object]
    done: str


def ending(state: State, fence: int) -> TrialResult:
    error = None if state in ("finished", "pruned") else "because"
    return TrialResult(number=0, fence=fence, state=state, objective=None, error=error)


def saved(fence: int) -> Checkpoint:
    return Checkpoint(number=0, fence=fence, step=10, path="/p", row=3, sha256="f")


WRITES = {
    "metrics": Write(lambda study, fence: study.record([make_report(0, 20, fence=fence)]), "steps = 20"),
    "checkpoint": Write(
        lambda study, fence: study.record([], [], [saved(fence)]),
        "EXISTS (SELECT 1 FROM checkpoints WHERE trial_id = trials.id AND step = 10)",
    ),
    "finish": Write(lambda study, fence: study.record([], [ending("finished", fence)]), "state = 'finished'"),
    "diverge": Write(lambda study, fence: study.record([], [ending("diverged", fence)]), "state = 'diverged'"),
    "fail": Write(lambda study, fence: study.end([ending("failed", fence)]), "state = 'failed'"),
    "stop": Write(lambda study, fence: study.end([ending("pruned", fence)]), "state = 'pruned'"),
    "release": Write(lambda study, fence: study.release(held(0, fence=fence)), "state = 'queued' AND deaths = 0"),
    "rescue": Write(lambda study, fence: study.rescue(held(0, fence=fence)), "state = 'queued' AND deaths = 1"),
    "make room": Write(
        lambda study, fence: study.start([make_trial(7)], "w", [ending("pruned", fence)]),
        "state = 'pruned'",
    ),
}
