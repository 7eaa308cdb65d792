"""Indices for rankings, fronts and errors of a study, without the trials' configurations."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.drop_index(op.f("ix_trials_study_id_objective"), "trials")
    ranking = ("objective", "number", "second_objective", "feasible")
    op.create_index(op.f(f"ix_trials_study_id_{'_'.join(ranking)}"), "trials", ["study_id", *ranking])
    has_error = sa.text("error IS NOT NULL")
    op.create_index(
        "ix_trials_error", "trials", ["study_id", "number"], sqlite_where=has_error, postgresql_where=has_error
    )
