"""What becomes of a study after its launch: notes, tags, an archive, and changes of its space."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("studies", sa.Column("checkpoint_folder", sa.Text()))
    op.add_column("studies", sa.Column("note", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("studies", sa.Column("tags", sa.JSON(), nullable=False, server_default=sa.text("'[]'")))
    archived = sa.Boolean(create_constraint=False)
    op.add_column("studies", sa.Column("archived", archived, nullable=False, server_default=sa.false()))
    op.create_table(
        "changes",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("differences", sa.JSON(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_changes_study_id")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_changes")),
    )
