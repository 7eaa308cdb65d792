"""A small study in a database, written with the storage API alone: 20 trials whose every number is known."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from spaces.records import Checkpoint, Metric, Report, Trial, TrialResult
from spaces.settings import Objective
from storage import ControlledStudy, NewStudy, Store, open_store
from storage.databases.postgres_locks import _LOCK_CLASS
from tests.support.databases import heard, raw

SPACE = "study: demo\n# the text of a space is only stored here\n"
OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="bema")
WORKER = "worker-1"
ENDED, RUNNING = range(16), range(16, 20)
PLANNED = 24
DIVERGED, FAILED, PRUNED = 13, 14, 15
REASON = "CUDA error\n\x1b[31mout of | memory <b>"


def rate(number: int) -> float:
    """Return the learning rate of trial `number`."""
    return 0.001 * (number + 1)


def trial(number: int) -> Trial:
    """Trial `number`: group of ten; every third one draws an SSA scorer, and only these have its exponent."""
    ssa = number % 3 == 0
    scorer: dict[str, Any] = {"name": "ssa", "n": 1.5 + number} if ssa else {"name": "softmax"}
    extra: dict[str, Any] = {"model.scorer.n": 1.5 + number} if ssa else {}
    return Trial(
        number=number,
        group=number // 10,
        seed=1000 + number,
        draws={"optimizer.learning_rate": number / 100, "model.scorer": 0.25},
        params={"optimizer.learning_rate": rate(number), "model.scorer": scorer["name"], "task.length": 4, **extra},
        config={
            "averaging": {"name": "bema"},
            "model": {"name": "minimal", "width": 8, "scorer": scorer},
            "optimizer": {"name": "adamw", "learning_rate": rate(number)},
            "task": {"length": 4, "name": "set_complement"},
            "training": {"steps": 200},
        },
        structure="{}",
    )


def tvd(number: int, step: int) -> float:
    """Return the metric of trial `number`, which falls up to step 100 and rises by a tenth at step 200."""
    return (0.1 + number / 100) * (1.1 if step == 200 else 1.0 if step == 100 else 2.0)


def metrics(number: int, step: int) -> tuple[Metric, ...]:
    value = tvd(number, step)
    return Metric("tvd", "raw", "", 2 * value), Metric("tvd", "bema", "", value)


def ending(number: int) -> TrialResult:
    """Of the trials that ended the lowest number is the best; the last three ended badly."""
    if number == DIVERGED:
        return TrialResult(number=number, fence=1, state="diverged", objective=None, error="loss is not finite")
    if number == FAILED:
        return TrialResult(number=number, fence=1, state="failed", objective=None, error=REASON)
    return TrialResult(
        number=number, fence=1, state="pruned" if number == PRUNED else "finished", objective=tvd(number, 100)
    )


def write_study(store: Store, name: str = "demo") -> ControlledStudy:
    """Return the study in state running: 16 trials ended, 4 are at step 100, 4 have not been started."""
    study_id = store.create_study(
        NewStudy(
            name,
            space=SPACE,
            space_hash="0" * 64,
            objective=OBJECTIVE,
            seed=7,
            trials=PLANNED,
            version="0.2.0",
            numerics=1,
        )
    )
    study = store.take_control(study_id, policy="full", objective=OBJECTIVE)
    study.set_state("running")
    study.start([trial(number) for number in (*ENDED, *RUNNING)], WORKER)
    for step, numbers in ((50, (*ENDED, *RUNNING)), (100, (*ENDED, *RUNNING)), (200, ENDED)):
        reports = [Report(number=number, fence=1, step=step, metrics=metrics(number, step)) for number in numbers]
        study.record(reports)
    study.end([ending(number) for number in ENDED])
    study.record([], [], [checkpoint(number, step) for step in (50, 100) for number in RUNNING])
    study.renew_leases([heard(WORKER)], 60)
    return study


def checkpoint(number: int, step: int) -> Checkpoint:
    """Where trial `number` lies as of a step, in a file that is not there."""
    row = number - RUNNING.start
    known = {"objective": tvd(number, step), "monitors": [None]}
    file = {"path": f"/none/{step}", "row": row, "sha256": f"{step:064}"}
    return Checkpoint(number=number, fence=1, step=step, controller_state=known, **file)


@contextmanager
def running(url: str) -> Generator[Store]:
    """Yield a database with the study `demo` and nothing else, held by its controller."""
    with open_store(url) as store:
        write_study(store)
        yield store
    if url.startswith("postgresql"):  # the server releases a lock when it has noticed that the connection ended
        locks = [f"pg_advisory_{verb}({_LOCK_CLASS}, id)" for verb in ("lock", "unlock")]
        raw(url, f"SELECT {', '.join(locks)} FROM studies")
