"""A study that is changed while it does not run: trials by hand, its space, its name; or deletion.

Each method is one transaction. Control of the study is taken as by a controller, so that no
controller runs meanwhile, and one that was away finds another fence when it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import StudyError
from spaces.plugins.bundles import Bundle
from spaces.records import TERMINAL, Constraints, Trial
from spaces.settings import Objective
from storage import claim_events, sources, test_sets
from storage.clock import Now
from storage.control import rows
from storage.control.queries import StudyQueries
from storage.control.session import Session, transaction
from storage.schema import KEYED_BY_STUDY, architectures, changes, checkpoints, metrics, studies, trial_id, trials

_REGROUP = update(trials).where(trials.c.id == bindparam("trial")).values(group_number=bindparam("group"))


@dataclass(frozen=True, kw_only=True)
class SpaceChange:
    """The values that change when a study gets another space."""

    space: str
    space_hash: str
    objective: Objective
    trials: int
    """The number of planned trials, without trials by hand and copies."""
    version: str
    differences: Sequence[tuple[str, Any, Any]]
    """Paths, each with its value before and after; JSON values."""
    checkpoint_folder: str
    """The folder of the study's checkpoints so far, which does not move."""
    bundles: Sequence[Bundle]
    """Plug-ins from outside that the study does not have yet."""
    second_objective: str | None
    """The second objective with its direction, such as `minimize model.width`."""
    ratings: Mapping[int, tuple[float | None, float | None, Constraints | None]]
    """Number of a finished or pruned trial -> its new objective, second objective and constraints;
    others keep theirs."""
    groups: Mapping[int, int]
    """Number of a trial -> its new group number; others keep theirs."""
    restarts: bool
    """True if trials that have not ended start again from step 0."""


@final
class EditedStudy:
    """One study, controlled to be changed."""

    def __init__(self, session: Session, study_id: int) -> None:
        self.id = study_id
        self.session = session
        self.queries = StudyQueries(session, study_id)

    def rename(self, name: str) -> None:
        """Give the study another name; raises StudyError if it is taken."""
        this = update(studies).where(studies.c.id == self.id).values(name=name, updated_at=Now())
        try:
            self.session.transact(lambda connection: connection.execute(this))
        except IntegrityError:
            raise StudyError(f"study {name!r} exists already; choose another name") from None

    @transaction
    def keep_checkpoint_folder(self, connection: Connection, folder: str) -> None:
        """Note the folder of the study's checkpoints, unless noted: its name no longer says so."""
        this = update(studies).where(studies.c.id == self.id, studies.c.checkpoint_folder.is_(None))
        connection.execute(this.values(checkpoint_folder=folder))

    @transaction
    def delete(self, connection: Connection) -> None:
        """Delete the study and all of its rows."""
        delete_study(connection, self.id)

    @transaction
    def enqueue(self, connection: Connection, added: Sequence[Trial]) -> None:
        """Write new trials as queued, and plan as many more; StudyError for a taken number."""
        test_sets.check_sealed(connection, self.id)
        numbers = [trial.number for trial in added]
        these = select(trials.c.number, trials.c.draws).where(trials.c.study_id == self.id)
        # A server takes 65,535 numbers in one statement, and these follow one another.
        known = connection.execute(these.where(trials.c.number.between(min(numbers), max(numbers))))
        there = {number: draws for number, draws in known}  # noqa: C416
        new: list[dict[str, Any]] = []
        for trial in added:
            if trial.number not in there:
                new.append(rows.queued_row(self.id, trial))
            elif there[trial.number] != trial.draws:  # equal ones are this call's, made again
                problem = f"trial {trial.number} was added by another process meanwhile"
                raise StudyError(f"{problem}; enqueue again")
        if new:
            connection.execute(insert(trials).values(created_at=Now()), new)
        planned = rows.planned_count(self.id, studies.c.trials)
        this = update(studies).where(studies.c.id == self.id)
        connection.execute(this.values(trials=planned, state="stopped"))

    @transaction
    def change_space(self, connection: Connection, change: SpaceChange) -> None:
        """Replace the study's space, and record the differences."""
        row = connection.execute(select(studies.c.space).where(studies.c.id == self.id)).one()
        if row.space == change.space:  # made before, by a call whose answer was lost
            return
        test_sets.check_sealed(connection, self.id)
        count = select(func.count())
        started = count.select_from(trials).where(trials.c.study_id == self.id)
        number = count.select_from(changes).where(changes.c.study_id == self.id)
        connection.execute(
            insert(changes).values(
                study_id=self.id,
                number=number.scalar_subquery(),
                created_at=Now(),
                version=change.version,
                trials=started.scalar_subquery(),
                differences=[list(difference) for difference in change.differences],
                space=row.space,
            )
        )
        folder = func.coalesce(studies.c.checkpoint_folder, change.checkpoint_folder)
        connection.execute(
            update(studies)
            .where(studies.c.id == self.id)
            .values(
                space=change.space,
                space_hash=change.space_hash,
                objective=str(change.objective),
                direction=change.objective.direction,
                second_objective=change.second_objective,
                trials=rows.planned_count(self.id, change.trials),
                checkpoint_folder=folder,
                state="stopped",
                updated_at=Now(),
            )
        )
        sources.add(connection, self.id, change.bundles)
        claim_events.lock_claims(connection, self.id, change.space, change.version)
        self._rewrite_trials(connection, change)

    def _rewrite_trials(self, connection: Connection, change: SpaceChange) -> None:
        """Give trials the ratings and groups of another space, and restart those that it restarts."""
        ratings = [
            {"trial": trial_id(self.id, number), **rows.rating_row(*rating)}
            for number, rating in change.ratings.items()
        ]
        if ratings:
            connection.execute(rows.RATING, ratings)
        groups = [{"trial": trial_id(self.id, number), "group": group} for number, group in change.groups.items()]
        if groups:
            connection.execute(_REGROUP, groups)
        if change.restarts:  # trials that have not ended are queued without their training so far
            open_ones = (trials.c.study_id == self.id, trials.c.state.not_in(TERMINAL))
            ids = select(trials.c.id).where(*open_ones)
            connection.execute(delete(checkpoints).where(checkpoints.c.trial_id.in_(ids)))
            connection.execute(delete(metrics).where(metrics.c.trial_id.in_(ids)))
            rows.delete_test_results(connection, self.id, trials.c.state.not_in(TERMINAL))
            connection.execute(update(trials).where(*open_ones).values(rows.NEVER_RUN))


def delete_study(connection: Connection, study_id: int) -> None:
    """Delete a study and all of its rows, in the caller's transaction."""
    first, last = trial_id(study_id, 0), trial_id(study_id + 1, 0) - 1
    for table in (metrics, checkpoints):
        connection.execute(delete(table).where(table.c.trial_id.between(first, last)))
    # Trials refer to architectures, and architectures to the study.
    for table in (trials, architectures, *KEYED_BY_STUDY):
        connection.execute(delete(table).where(table.c.study_id == study_id))
    connection.execute(delete(studies).where(studies.c.id == study_id))
