"""The statements over trials and their metrics; each function is a step of a transaction that its caller opened.

Every write on a trial that was started says which start of it (its fence) it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, exists, func, literal_column, select, update

from spaces.records import (
    TERMINAL,
    Architecture,
    Metric,
    Outcome,
    QueuedTrial,
    Report,
    State,
    StoredTrial,
    Trial,
    TrialResult,
    TrialStart,
)
from spaces.settings import Direction
from storage import checkpointing
from storage.database import Database, Insert, MetricRow
from storage.schema import Now, architectures, checkpoints, metrics, studies, trial_id, trials

_IN = 10_000
"""Values in one IN (...): below the limits of both databases."""

_STEPS = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.state == "running", trials.c.steps < bindparam("step"))
    .values(steps=bindparam("step"))
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
_END = (
    update(trials)
    .where(trials.c.id == bindparam("trial"), trials.c.state == "running", trials.c.fence == bindparam("start"))
    .values(state=bindparam("verdict"), objective=bindparam("score"), error=bindparam("reason"), finished_at=Now())
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
_FORGET = delete(metrics).where(metrics.c.trial_id == bindparam("trial"), metrics.c.step == bindparam("at"))


def start(connection: Connection, insert: Insert, study_id: int, started: Sequence[Trial], worker: str) -> None:
    """Insert trials as running, or move them there from queued; a trial in another state is left as it is.

    A queued trial is written anew, as what is trained now: another version may have filled in other defaults.
    """
    statement = insert.values(created_at=Now(), started_at=Now())
    moved = {"state": "running", "worker": worker, "started_at": Now(), "fence": trials.c.fence + 1, "steps": _FURTHER}
    statement = statement.on_conflict_do_update(
        index_elements=[trials.c.id],
        set_={**_RESOLVED, **moved},
        where=trials.c.state == "queued",
    )
    learned = _learned_by(
        connection, study_id, [trial.architecture_trial for trial in started if trial.architecture_trial is not None]
    )
    rows = [_trial_row(study_id, trial, worker) for trial in started]
    for row, trial in zip(rows, started, strict=True):
        row["architecture_id"] = learned.get(trial.architecture_trial)
    connection.execute(statement, rows)
    copies = [trial.number + 1 for trial in started if trial.lineage]
    if copies:
        this = update(studies).where(studies.c.id == study_id, studies.c.trials < max(copies))
        connection.execute(this.values(trials=max(copies)))


_RESOLVED = {
    name: literal_column(f"excluded.{name}") for name in ("task", "model", "scorer", "seed", "params", "config")
}
"""What follows from a trial's draws; spelled out, as SQLAlchemy makes all columns anew for `excluded`."""
_STARTS = literal_column("excluded.steps")
_FURTHER = case((trials.c.steps > _STARTS, trials.c.steps), else_=_STARTS)
"""A trial that waits may be at a checkpoint."""


def _learned_by(connection: Connection, study_id: int, numbers: Collection[int]) -> Mapping[int | None, int]:
    """Number of a trial -> id of the architecture that it learned, the first of them."""
    if not numbers:
        return {}
    c = architectures.c
    ids = {trial_id(study_id, number): number for number in numbers}
    found = select(c.trial_id, func.min(c.id)).where(c.trial_id.in_(ids)).group_by(c.trial_id)
    return {ids[trial]: architecture for trial, architecture in connection.execute(found)}


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


def fences(connection: Connection, study_id: int, numbers: Iterable[int]) -> dict[int, tuple[int, State]]:
    """Number -> fence and state of those that exist; their rows stay locked until the transaction ends."""
    parts = _parts([trial_id(study_id, number) for number in numbers])
    found = (row for part in parts for row in connection.execute(_FENCES, {"ids": part}))
    return {number: (fence, state) for number, fence, state in found}


def fences_of(connection: Connection, study_id: int, worker: str, numbers: Iterable[int]) -> dict[int, int]:
    """Number -> fence of those that run on `worker`."""
    found: dict[int, int] = {}
    for part in _parts([trial_id(study_id, number) for number in numbers]):
        these = select(trials.c.number, trials.c.fence).where(trials.c.id.in_(part), trials.c.state == "running")
        found.update((number, fence) for number, fence in connection.execute(these.where(trials.c.worker == worker)))
    return found


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ids, as many at once as an IN (...) takes."""
    return (ids[i : i + _IN] for i in range(0, len(ids), _IN))


def report(connection: Connection, database: Database, study_id: int, reports: Sequence[Report]) -> None:
    """Write the metrics of trials that are held, and how far they are; rows that are there already stay."""
    if not reports:
        return
    rows = [row for one in reports for row in _metric_rows(trial_id(study_id, one.number), one)]
    if rows:
        database.insert_metrics(connection, rows)
    _learned(connection, database.insert(architectures), study_id, reports)
    furthest = {one.number: one.step for one in sorted(reports, key=lambda one: one.step)}
    connection.execute(_STEPS, [{"trial": trial_id(study_id, n), "step": step} for n, step in furthest.items()])


def _learned(connection: Connection, insert: Insert, study_id: int, reports: Sequence[Report]) -> None:
    """Write the architectures that come with reports; those that are there already stay."""
    found = {trial_id(study_id, one.number): one.architectures for one in reports if one.architectures}
    if not found:
        return
    these = connection.execute(select(trials.c.id, trials.c.task, trials.c.params).where(trials.c.id.in_(found)))
    tasks = {trial: params.get("transfer.task", task) for trial, task, params in these}  # a transfer names its own
    rows = [
        {"study_id": study_id, "trial_id": trial, "task": tasks[trial], **one._asdict(), "knots": list(one.knots)}
        for trial, learned in found.items()
        for one in learned
    ]
    statement = insert.values(created_at=Now())
    connection.execute(statement.on_conflict_do_nothing(index_elements=["trial_id", "component"]), rows)


def _metric_rows(trial: int, one: Report) -> Iterator[MetricRow]:
    for name, variant, condition, value in one.metrics:
        yield trial, one.step, name, variant, condition, finite(value)


def forget(connection: Connection, study_id: int, steps: Iterable[tuple[int, int]]) -> None:
    """Delete the metrics of (number, step)s."""
    rows = [{"trial": trial_id(study_id, number), "at": step} for number, step in steps]
    if rows:
        connection.execute(_FORGET, rows)


def end(connection: Connection, study_id: int, endings: Iterable[TrialResult]) -> None:
    """Give running trials their final state, and their steps to the study; one that ended before keeps its state."""
    rows = [_ending_row(study_id, ending) for ending in endings]
    for part in _parts([row["trial"] for row in rows]):
        connection.execute(_TRAINED, {"study": study_id, "ids": part})
    if rows:
        connection.execute(_END, rows)


def _ending_row(study_id: int, ending: TrialResult) -> dict[str, Any]:
    assert ending.state in TERMINAL, ending
    return {
        "trial": trial_id(study_id, ending.number),
        "start": ending.fence,
        "verdict": ending.state,
        "score": finite(ending.objective),
        "reason": _storable(ending.error),
    }


def _storable(text: str | None) -> str | None:
    """The text of an error, without what PostgreSQL, or UTF-8, cannot hold."""
    return text and text.replace("\0", " ").encode(errors="backslashreplace").decode()


def running(connection: Connection, study_id: int) -> list[TrialStart]:
    """The trials in training, in order of number."""
    these = select(trials.c.number, trials.c.fence).where(trials.c.study_id == study_id, trials.c.state == "running")
    return [TrialStart(*row) for row in connection.execute(these.order_by(trials.c.id))]


def requeue(connection: Connection, study_id: int, held: Sequence[TrialStart], deaths: int) -> None:
    """Put these starts of trials back in the queue, each with so many more deaths and what its checkpoints have."""
    rows = [{"trial": trial_id(study_id, one.number), "start": one.fence} for one in held]
    if rows:
        connection.execute(_REQUEUE, [{**row, "dead": deaths} for row in rows])
        connection.execute(_BEYOND, rows)


def queued(connection: Connection, study_id: int) -> list[tuple[list[StoredTrial], QueuedTrial]]:
    """The trials that wait, in order of number, each with its line of descent."""
    numbers = select(trials.c.number).where(trials.c.study_id == study_id, trials.c.state == "queued")
    these = list(connection.scalars(numbers.order_by(trials.c.id)))
    return list(zip(lines(connection, study_id, these), waiting(connection, study_id, these), strict=True))


def waiting(connection: Connection, study_id: int, numbers: Iterable[int]) -> list[QueuedTrial]:
    """What is known of those of these trials that wait, in order of number."""
    c, found = trials.c, list[QueuedTrial]()
    for part in _parts(sorted(trial_id(study_id, number) for number in numbers)):
        kept = checkpointing.kept(connection, part)
        these = select(c.id, c.number, c.deaths).where(c.id.in_(part), c.state == "queued").order_by(c.id)
        found += [
            QueuedTrial(number, deaths, kept.get(trial, ())) for trial, number, deaths in connection.execute(these)
        ]
    return found


def lines(connection: Connection, study_id: int, numbers: Sequence[int]) -> list[list[StoredTrial]]:
    """The line of descent of each of these trials: first the trial that started anew, last the trial itself."""
    c = trials.c
    known: dict[int, tuple[StoredTrial, int | None]] = {}
    wanted = set(numbers)
    while wanted:
        asked = list(wanted)[:_IN]
        these = c.id.in_([trial_id(study_id, number) for number in asked])
        found = connection.execute(
            select(c.number, c.draws, c.parent_step, c.params, c.config, c.parent).where(these)
        ).all()
        known |= {
            number: (StoredTrial(number, draws, start or 0, params, config), parent)
            for number, draws, start, params, config, parent in found
        }
        wanted = wanted.difference(asked) | ({parent for *_, parent in found if parent is not None} - known.keys())
    return [_line(known, number) for number in numbers]


def _line(known: Mapping[int, tuple[StoredTrial, int | None]], number: int) -> list[StoredTrial]:
    line: list[StoredTrial] = []
    stage, parent = known[number]
    while parent is not None:
        line.append(stage)
        stage, parent = known[parent]
    return [stage, *reversed(line)]


def outcomes(connection: Connection, study_id: int, limit: int | None) -> list[Outcome]:
    """The trials that ended last (None: all), in the order in which they ended."""
    c = trials.c
    ended = select(c.number, c.group_number, c.draws, c.objective, c.state).where(c.study_id == study_id)
    latest = ended.where(c.state.in_(TERMINAL)).order_by(c.finished_at.desc(), c.number.desc()).limit(limit)
    learned = _architectures(connection, study_id)
    return [
        Outcome(
            number=number,
            group=group,
            draws=draws,
            objective=objective,
            state=state,
            architectures=learned.get(trial_id(study_id, number), ()),
        )
        for number, group, draws, objective, state in reversed(connection.execute(latest).all())
    ]


def _architectures(connection: Connection, study_id: int) -> dict[int, tuple[Architecture, ...]]:
    """Id of a trial -> what it learned, in order of component."""
    c = architectures.c
    found = select(c.trial_id, c.component, c.low, c.high, c.knots).where(c.study_id == study_id)
    learned: dict[int, tuple[Architecture, ...]] = {}
    for trial, component, low, high, knots in connection.execute(found.order_by(c.trial_id, c.component)):
        one = Architecture(component=component, low=low, high=high, knots=tuple(knots))
        learned[trial] = (*learned.get(trial, ()), one)
    return learned


def reports(connection: Connection, study_id: int, metric: str) -> list[Report]:
    """The kept reports of trials that ended, with the metrics of this name; by number, steps ascending."""
    t, m = trials.c, metrics.c
    wanted = (
        select(t.number, m.step, m.name, m.variant, m.condition, m.value)
        .join_from(metrics, trials, m.trial_id == t.id)
        .where(t.study_id == study_id, t.state.in_(TERMINAL), m.name == metric, m.value.is_not(None))
        .order_by(t.number, m.step)
    )
    rows = connection.execute(wanted)
    return [
        Report(number=number, step=step, metrics=tuple(Metric(*row[2:]) for row in group))
        for (number, step), group in groupby(rows, key=lambda row: (row[0], row[1]))
    ]


def copied(connection: Connection, study_id: int) -> dict[int, int]:
    """The trials whose state others took over -> the last step at which one did."""
    c = trials.c
    parents = select(c.parent, func.max(c.parent_step)).where(c.study_id == study_id, c.parent.is_not(None))
    return {number: step for number, step in connection.execute(parents.group_by(c.parent))}  # noqa: C416


def created(connection: Connection, study_id: int) -> int:
    """The highest number of the study plus one; 0 for a study without trials."""
    return (
        connection.scalar(select(func.coalesce(func.max(trials.c.number) + 1, 0)).where(trials.c.study_id == study_id))
        or 0
    )


def holes(connection: Connection, study_id: int) -> list[range]:
    """The numbers below the highest that no trial has, ascending."""
    number = trials.c.number
    last = func.lag(number, 1, -1).over(order_by=number).label("last")
    numbers = select(number, last).where(trials.c.study_id == study_id).subquery()
    gaps = select(numbers.c.last + 1, numbers.c.number).where(numbers.c.number > numbers.c.last + 1)
    return [range(first, stop) for first, stop in connection.execute(gaps.order_by(numbers.c.number))]


def best(connection: Connection, study_id: int, direction: Direction) -> tuple[float, int] | None:
    """The best objective and its trial's number, the lowest of several; None if no trial has an objective."""
    c = trials.c
    order = c.objective if direction == "minimize" else c.objective.desc()
    known = select(c.objective, c.number).where(c.study_id == study_id, c.objective.is_not(None))
    found = connection.execute(known.order_by(order, c.id).limit(1)).first()
    return (found.objective, found.number) if found else None


def counts(connection: Connection, study_id: int) -> dict[State, int]:
    """How many trials are in each state that occurs."""
    rows = connection.execute(
        select(trials.c.state, func.count()).where(trials.c.study_id == study_id).group_by(trials.c.state)
    )
    return {state: count for state, count in rows}  # noqa: C416


def finite(value: float | None) -> float | None:
    """The number, or None for one that SQL cannot hold."""
    return value if value is not None and math.isfinite(value) else None
