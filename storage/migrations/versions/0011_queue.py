"""The queue of the service: what it is to run, for whom, and why a study waits."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "submissions",
        sa.Column("study_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("max_lanes", sa.BigInteger()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("lanes", sa.BigInteger(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint(
            "state IN ('waiting', 'running', 'paused', 'cancelled', 'done', 'failed')",
            name=op.f("ck_submissions_state"),
        ),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_submissions_study_id")),
        sa.PrimaryKeyConstraint("study_id", name=op.f("pk_submissions")),
    )
