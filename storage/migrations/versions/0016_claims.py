"""Claims about the arms of a study: when they were locked, edited, and looked at."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "claim_events",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("claims", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("results", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("request", sa.Text()),
        sa.CheckConstraint("event IN ('locked', 'edited', 'looked')", name=op.f("ck_claim_events_event")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_claim_events_study_id")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_claim_events")),
    )
