"""Fences of controllers, crashes of workers by trial, and checkpoints of running trials."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("studies", sa.Column("fence", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("studies", sa.Column("checkpoints", sa.Text()))
    op.add_column("trials", sa.Column("deaths", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.drop_column("trials", "lease_until")  # a lease is a worker's, and was never written here
    op.add_column("workers", sa.Column("log", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.create_table(
        "checkpoints",
        sa.Column("trial_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("past", sa.JSON(), nullable=False),
        sa.Column("known", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_checkpoints_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "step", name=op.f("pk_checkpoints")),
    )
