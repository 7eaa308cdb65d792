"""The statements over trials and metrics; each function is a step of its caller's transaction.

Every write on a trial that was started has the fence of the start that it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)

from spaces.records import TERMINAL, Constraints, Report, State, Trial, TrialResult, TrialStart, is_feasible
from storage.clock import Now
from storage.control.stored_trials import split_ids
from storage.databases.database import Database, Insert, MetricRow
from storage.schema import architectures, checkpoints, metrics, studies, test_results, trial_id, trials
from storage.test_sets import seal

_KIND = bindparam("kind", type_=Text())
_STEPS = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.state == "running", trials.c.steps < bindparam("step"))
    .values(
        steps=bindparam("step"),
        step_kind=case(
            (trials.c.step_kind.is_(None), func.nullif(_KIND, "")),
            (trials.c.step_kind.contains(_KIND), trials.c.step_kind),
            else_=trials.c.step_kind + ", " + _KIND,
        ),
        fingerprint=func.coalesce(bindparam("print", type_=Integer()), trials.c.fingerprint),
    )
)
_FENCES = (
    select(trials.c.number, trials.c.fence, trials.c.state)
    .where(trials.c.id.in_(bindparam("ids", expanding=True)))
    .with_for_update()
)
_TRAINED = (
    update(studies)
    .where(studies.c.id == bindparam("study"))
    .values(
        steps=studies.c.steps
        + select(func.coalesce(func.sum(trials.c.steps - func.coalesce(trials.c.parent_step, 0)), 0))
        .where(trials.c.id.in_(bindparam("ids", expanding=True)), trials.c.state == "running")
        .scalar_subquery()
    )
)
_RATING: dict[str, Any] = {
    "objective": bindparam("first"),
    "second_objective": bindparam("second"),
    "constraints": bindparam("excesses"),
    "feasible": bindparam("keeps"),
}
RATING = update(trials).where(trials.c.id == bindparam("trial")).values(_RATING)
_ends = trials.alias("ends")
_NEXT_END = (
    select(func.coalesce(func.max(_ends.c.ended), 0) + 1).where(_ends.c.study_id == trials.c.study_id).scalar_subquery()
)
_END = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.state == "running", trials.c.fence == bindparam("start"))
    .values(state=bindparam("verdict"), error=bindparam("reason"), finished_at=Now(), ended=_NEXT_END, **_RATING)
)
_REQUEUE = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.state == "running", trials.c.fence == bindparam("start"))
    .values(
        state="queued",
        worker=None,
        started_at=None,
        steps=func.coalesce(
            select(func.max(checkpoints.c.step)).where(checkpoints.c.trial_id == trials.c.id).scalar_subquery(), 0
        ),
        deaths=trials.c.deaths + bindparam("dead"),
    )
)
_BEYOND = delete(metrics).where(
    metrics.c.trial_id == bindparam("trial"),
    metrics.c.step > select(trials.c.steps).where(trials.c.id == bindparam("trial")).scalar_subquery(),
    exists().where(trials.c.id == bindparam("trial"), trials.c.state == "queued", trials.c.fence == bindparam("start")),
)
_BEYOND_TEST = delete(test_results).where(
    test_results.c.study_id == bindparam("study"),
    test_results.c.number == bindparam("number"),
    test_results.c.step > select(trials.c.steps).where(trials.c.id == bindparam("trial")).scalar_subquery(),
    exists().where(trials.c.id == bindparam("trial"), trials.c.state == "queued", trials.c.fence == bindparam("start")),
)
_FORGET_TEST = delete(test_results).where(
    test_results.c.study_id == bindparam("study"),
    test_results.c.number == bindparam("trial"),
    test_results.c.step == bindparam("at"),
)
_FORGET = delete(metrics).where(metrics.c.trial_id == bindparam("trial"), metrics.c.step == bindparam("at"))


def start(connection: Connection, insert: Insert, study_id: int, started: Sequence[Trial], worker: str) -> None:
    """Insert trials as running, or move them there from queued; others are left as they are.

    A queued trial's row is replaced by the present one: another version may have other defaults.
    """
    donors = [trial.architecture_trial for trial in started if trial.architecture_trial is not None]
    sources = {trial_id(study_id, number) for number in donors}
    learned: dict[int | None, int] = {}
    """Number of a trial -> the first architecture that it learned."""
    if sources:
        c = architectures.c
        first = select(c.trial_id, func.min(c.id)).group_by(c.trial_id)
        first = first.where(c.trial_id.in_(sources))
        learned = {trial - trial_id(study_id, 0): architecture for trial, architecture in connection.execute(first)}
    rows = [
        {**_trial_row(study_id, trial, worker), "architecture_id": learned.get(trial.architecture_trial)}
        for trial in started
    ]
    moved = {
        "state": "running",
        "worker": worker,
        "started_at": Now(),
        "fence": trials.c.fence + 1,
        "steps": _FURTHER,
        "step_kind": case((_HAS_STATE, trials.c.step_kind), else_=None),
        "fingerprint": case((_HAS_STATE, trials.c.fingerprint), else_=None),
    }
    statement = insert.values(created_at=Now(), started_at=Now()).on_conflict_do_update(
        index_elements=[trials.c.id],
        set_={**_RESOLVED, **moved},
        where=trials.c.state == "queued",
    )
    connection.execute(statement, rows)
    copies = [trial.number + 1 for trial in started if trial.lineage]
    if copies:
        this = update(studies).where(studies.c.id == study_id, studies.c.trials < max(copies))
        connection.execute(this.values(trials=max(copies)))


_COLUMNS = ("task", "model", "scorer", "seed", "params", "config")
_RESOLVED = {name: literal_column(f"excluded.{name}") for name in _COLUMNS}
"""The columns that follow from a trial's draws, by name: `excluded` alone would copy all."""
_FIRST_STEP = literal_column("excluded.steps")
_HAS_STATE = trials.c.steps > _FIRST_STEP
_FURTHER = case((_HAS_STATE, trials.c.steps), else_=_FIRST_STEP)
"""A queued trial with a checkpoint stays at its step; any other starts at the first step."""


def _trial_row(study_id: int, trial: Trial, worker: str) -> dict[str, Any]:
    model = trial.config["model"]
    return {
        "id": trial_id(study_id, trial.number),
        "study_id": study_id,
        "number": trial.number,
        "group_number": trial.group,
        "state": "running",
        "task": trial.config["task"]["name"],
        "model": model["name"],
        "scorer": model["scorer"]["name"] if "scorer" in model else None,
        "seed": trial.seed,
        "parent": trial.parent,
        "parent_step": trial.parent_step if trial.lineage else None,
        "steps": trial.parent_step,
        "worker": worker,
        "fence": 1,
        "params": dict(trial.params),
        "draws": dict(trial.draws),
        "config": dict(trial.config),
    }


def queued_row(study_id: int, trial: Trial) -> dict[str, Any]:
    """Return the row of a trial that waits and was never started."""
    row = _trial_row(study_id, trial, "")
    return {**row, "state": "queued", "worker": None, "fence": 0}


def planned_count(study_id: int, number: int | ColumnElement[int]) -> ColumnElement[int]:
    """Return `number` trials, or as many more as the highest number of the study's trials needs."""
    highest = select(func.coalesce(func.max(trials.c.number) + 1, 0)).where(trials.c.study_id == study_id)
    there, wanted = highest.scalar_subquery(), cast(number, BigInteger)
    return case((there > wanted, there), else_=wanted)


def fences(connection: Connection, study_id: int, numbers: Iterable[int]) -> dict[int, tuple[int, State]]:
    """Map numbers to fence and state of trials; lock the rows until the transaction ends."""
    by_number: dict[int, tuple[int, State]] = {}
    for part in split_ids([trial_id(study_id, number) for number in numbers]):
        rows = connection.execute(_FENCES, {"ids": part})
        by_number.update((number, (fence, state)) for number, fence, state in rows)
    return by_number


def fences_of(connection: Connection, study_id: int, worker: str, numbers: Iterable[int]) -> dict[int, int]:
    """Map numbers to fences of the trials that run on `worker`."""
    starts: dict[int, int] = {}
    for part in split_ids([trial_id(study_id, number) for number in numbers]):
        these = select(trials.c.number, trials.c.fence).where(trials.c.id.in_(part), trials.c.state == "running")
        starts.update((number, fence) for number, fence in connection.execute(these.where(trials.c.worker == worker)))
    return starts


def report(
    connection: Connection, database: Database, study_id: int, reports: Sequence[Report], prints: Mapping[int, int]
) -> None:
    """Write metrics, learned architectures and reached steps; rows that exist already stay.

    `prints`: number of a trial -> number of its fingerprint.
    """
    if not reports:
        return
    rows: list[MetricRow] = [
        (trial_id(study_id, record.number), record.step, name, variant, condition, finite(value))
        for record in reports
        for name, variant, condition, value in record.metrics
    ]
    if rows:
        database.insert_metrics(connection, rows)
    _insert_splines(connection, database.insert(architectures), study_id, reports)
    sealed = [
        {"study_id": study_id, "number": record.number, "step": record.step, "sealed": seal(record.sealed)}
        for record in reports
        if record.sealed
    ]
    if sealed:
        statement = database.insert(test_results)
        # A trial that was trained again from a checkpoint reports again.
        kept = {"sealed": statement.excluded.sealed}
        keys = [*test_results.primary_key]
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=kept), sealed)
    last = {record.number: record for record in sorted(reports, key=lambda record: record.step)}
    steps = [
        {
            "trial": trial_id(study_id, number),
            "step": record.step,
            "kind": record.fingerprint.step_kind if record.fingerprint else "",
            "print": prints.get(number),
        }
        for number, record in last.items()
    ]
    connection.execute(_STEPS, steps)


def _insert_splines(connection: Connection, insert: Insert, study_id: int, reports: Sequence[Report]) -> None:
    learned = {trial_id(study_id, record.number): record.splines for record in reports if record.splines}
    if not learned:
        return
    these = select(trials.c.id, trials.c.task, trials.c.params).where(trials.c.id.in_(learned))
    matches = connection.execute(these)
    # A transfer names its tasks itself.
    tasks = {trial: params.get("transfer.task", task) for trial, task, params in matches}
    rows = [
        {"study_id": study_id, "trial_id": trial, "task": tasks[trial], **spline._asdict(), "knots": list(spline.knots)}
        for trial, splines in learned.items()
        for spline in splines
    ]
    statement = insert.values(created_at=Now())
    keys = ["trial_id", "component"]
    connection.execute(statement.on_conflict_do_nothing(index_elements=keys), rows)


def forget(connection: Connection, study_id: int, steps: Iterable[tuple[int, int]]) -> None:
    """Delete the metrics of (number, step)s."""
    pairs = [*steps]
    if pairs:
        rows = [{"trial": trial_id(study_id, number), "at": step} for number, step in pairs]
        connection.execute(_FORGET, rows)
        tests = [{"study": study_id, "trial": number, "at": step} for number, step in pairs]
        connection.execute(_FORGET_TEST, tests)


def end(connection: Connection, study_id: int, results: Sequence[TrialResult]) -> None:
    """End running trials and add their steps to the study's; ended trials keep their state."""
    if not results:
        return
    assert all(result.state in TERMINAL for result in results), results
    # The study's sum first: of running trials alone, so that steps of a trial count once.
    for part in split_ids([trial_id(study_id, result.number) for result in results]):
        connection.execute(_TRAINED, {"study": study_id, "ids": part})
    rows = [
        {
            "trial": trial_id(study_id, result.number),
            "start": result.fence,
            "verdict": result.state,
            **rating_row(result.objective, result.second_objective, result.constraints),
            "reason": storable(result.error),
        }
        for result in results
    ]
    connection.execute(_END, rows)


def rating_row(first: float | None, second: float | None, constraints: Constraints | None) -> dict[str, Any]:
    """Return a trial's objectives and constraints, by the names that statements bind."""
    excesses = None
    if constraints is not None:
        excesses = {text: finite(excess) for text, excess in constraints.items()}
    keeps = None if constraints is None else is_feasible(constraints)
    return {"first": finite(first), "second": finite(second), "excesses": excesses, "keeps": keeps}


def storable(text: str | None) -> str | None:
    """Return the text of an error, without characters that PostgreSQL or UTF-8 cannot hold."""
    return text and text.replace("\0", " ").encode(errors="backslashreplace").decode()


def requeue(connection: Connection, study_id: int, starts: Sequence[TrialStart], crashes: int) -> None:
    """Requeue these starts at their last checkpoints, with so many more worker crashes."""
    rows = [{"trial": trial_id(study_id, attempt.number), "start": attempt.fence} for attempt in starts]
    if rows:
        connection.execute(_REQUEUE, [{**row, "dead": crashes} for row in rows])
        connection.execute(_BEYOND, rows)
        numbers = [{"study": study_id, "number": attempt.number} for attempt in starts]
        connection.execute(_BEYOND_TEST, [row | number for row, number in zip(rows, numbers, strict=True)])


def retry(connection: Connection, study_id: int, ids: Sequence[int]) -> None:
    """Queue ended trials again, from step 0 as if they had never run; only fences count on."""
    c = trials.c
    for part in split_ids(ids):
        steps = func.sum(c.steps - func.coalesce(c.parent_step, 0))
        trained = select(func.coalesce(steps, 0)).where(c.id.in_(part))
        this = update(studies).where(studies.c.id == study_id)
        connection.execute(this.values(steps=studies.c.steps - trained.scalar_subquery()))
        connection.execute(delete(metrics).where(metrics.c.trial_id.in_(part)))
        delete_test_results(connection, study_id, c.id.in_(part))
        connection.execute(update(trials).where(c.id.in_(part)).values(NEVER_RUN))


def delete_test_results(connection: Connection, study_id: int, condition: ColumnElement[bool]) -> None:
    """Delete the test results of those trials of a study that keep a condition."""
    numbers = select(trials.c.number).where(trials.c.study_id == study_id, condition)
    of_them = test_results.c.study_id == study_id, test_results.c.number.in_(numbers)
    connection.execute(delete(test_results).where(*of_them))


# `ended` stays: whoever follows the ends goes on after it, and the next end is counted from there.
_RESULTS = ("objective", "second_objective", "constraints", "feasible", "error")
_RUN = ("worker", "step_kind", "fingerprint", "started_at", "finished_at")
NEVER_RUN: dict[str, Any] = {
    **dict.fromkeys((*_RESULTS, *_RUN), None),
    "state": "queued",
    "steps": 0,
    "deaths": 0,
}


def finite(value: float | None) -> float | None:
    """Return the number, or None for one that SQL cannot hold."""
    return value if value is not None and math.isfinite(value) else None
