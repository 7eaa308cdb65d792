"""Refused launches that would have changed a study with a claim, as rows of its claims' history."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    # SQLite cannot change a rule of a table: the table is made again.
    op.execute("CREATE TEMPORARY TABLE kept_claim_events AS SELECT * FROM claim_events")
    op.drop_table("claim_events")
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
        sa.CheckConstraint("event IN ('locked', 'edited', 'looked', 'refused')", name=op.f("ck_claim_events_event")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_claim_events_study_id")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_claim_events")),
    )
    op.execute("INSERT INTO claim_events SELECT * FROM kept_claim_events")
    op.execute("DROP TABLE kept_claim_events")
