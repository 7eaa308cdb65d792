"""The status of a large study without reading its trials: their steps, and the latest ends."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("studies", sa.Column("steps", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.execute(
        """UPDATE studies SET steps = (SELECT coalesce(sum(trials.steps - coalesce(parent_step, 0)), 0) FROM trials
        WHERE study_id = studies.id AND trials.state IN ('finished', 'pruned', 'diverged', 'failed'))"""
    )
    op.create_index(
        op.f("ix_trials_study_id_finished_at_started_at"), "trials", ["study_id", "finished_at", "started_at"]
    )
