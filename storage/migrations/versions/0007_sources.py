"""The sources of plug-ins from outside, which studies run from the database alone."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "sources",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("bundle", sa.Integer(), nullable=False),
        sa.Column("module", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("is_package", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("plugins", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_sources_study_id")),
        sa.PrimaryKeyConstraint("study_id", "bundle", "module", name=op.f("pk_sources")),
    )
