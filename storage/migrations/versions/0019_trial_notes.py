"""Stars, tags and notes of trials."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "trial_notes",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("starred", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_trial_notes_study_id")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_trial_notes")),
    )
