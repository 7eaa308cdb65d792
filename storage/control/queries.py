"""The queries of a controller about its study, each answered in one transaction."""

from __future__ import annotations

from itertools import groupby
from typing import final

from sqlalchemy import Connection, func, select

from spaces.records import TERMINAL, Metric, Outcome, QueuedTrial, Report, State, StoredTrial, TrialStart
from spaces.settings import Direction
from storage.control import checkpointing, stored_trials
from storage.control.session import Session, transaction
from storage.schema import metrics, trial_id, trials


@final
class StudyQueries:
    """Questions about a study's rows, defined by `search.steering.study_store.StudyQueries`."""

    def __init__(self, session: Session, study_id: int) -> None:
        self.id = study_id
        self.session = session

    @transaction
    def running(self, connection: Connection) -> list[TrialStart]:
        running = select(trials.c.number, trials.c.fence).where(
            trials.c.study_id == self.id, trials.c.state == "running"
        )
        return [TrialStart(*row) for row in connection.execute(running.order_by(trials.c.id))]

    @transaction
    def queued(self, connection: Connection) -> list[tuple[list[StoredTrial], QueuedTrial]]:
        queued = select(trials.c.number).where(trials.c.study_id == self.id, trials.c.state == "queued")
        numbers = list(connection.scalars(queued.order_by(trials.c.id)))
        lineages = stored_trials.read_lineages(connection, self.id, numbers)
        queued_trials = stored_trials.read_queued(connection, self.id, numbers)
        return list(zip(lineages, queued_trials, strict=True))

    @transaction
    def outcomes(self, connection: Connection, limit: int | None) -> list[Outcome]:
        c = trials.c
        columns = (c.number, c.group_number, c.draws, c.objective, c.state)
        ended = select(*columns, c.second_objective, c.constraints).where(c.study_id == self.id)
        order = (c.finished_at.desc(), c.number.desc())
        newest = ended.where(c.state.in_(TERMINAL)).order_by(*order).limit(limit)
        learned = stored_trials.read_splines(connection, self.id)
        rows = reversed(connection.execute(newest).all())
        return [
            Outcome(
                number=number,
                group=group,
                draws=draws,
                objective=objective,
                state=state,
                splines=learned.get(trial_id(self.id, number), ()),
                second_objective=second,
                constraints=constraints,
            )
            for number, group, draws, objective, state, second, constraints in rows
        ]

    @transaction
    def reports(self, connection: Connection, metric: str) -> list[Report]:
        t, m = trials.c, metrics.c
        kept = (
            select(t.number, m.step, m.name, m.variant, m.condition, m.value)
            .join_from(metrics, trials, m.trial_id == t.id)
            .where(t.study_id == self.id, m.name == metric, m.value.is_not(None))
            .order_by(t.number, m.step)
        )
        rows = connection.execute(kept)
        return [
            Report(number=number, step=step, metrics=tuple(Metric(*row[2:]) for row in group))
            for (number, step), group in groupby(rows, key=lambda row: (row[0], row[1]))
        ]

    @transaction
    def copy_steps(self, connection: Connection) -> dict[int, int]:
        c = trials.c
        these = select(c.parent, func.max(c.parent_step)).group_by(c.parent)
        rows = connection.execute(these.where(c.study_id == self.id, c.parent.is_not(None)))
        return {number: step for number, step in rows}  # noqa: C416

    @transaction
    def next_number(self, connection: Connection) -> int:
        highest = select(func.max(trials.c.number)).where(trials.c.study_id == self.id)
        number = connection.scalar(highest)
        return 0 if number is None else number + 1

    @transaction
    def holes(self, connection: Connection) -> list[range]:
        number = trials.c.number
        last = func.lag(number, 1, -1).over(order_by=number).label("last")
        numbers = select(number, last).where(trials.c.study_id == self.id).subquery()
        gaps = select(numbers.c.last + 1, numbers.c.number).where(numbers.c.number > numbers.c.last + 1)
        return [range(first, stop) for first, stop in connection.execute(gaps.order_by(numbers.c.number))]

    @transaction
    def counts(self, connection: Connection) -> dict[State, int]:
        return stored_trials.count_trials(connection, self.id)

    @transaction
    def best(self, connection: Connection, direction: Direction) -> tuple[float, int] | None:
        return stored_trials.find_best(connection, self.id, direction)

    @transaction
    def checkpoint_paths(self, connection: Connection) -> frozenset[str]:
        return checkpointing.read_paths(connection, self.id)
