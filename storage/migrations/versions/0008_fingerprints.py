"""Fingerprints, the conditions of each trial's numbers; and successors of plug-in files."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "fingerprints",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("previous", sa.Integer()),
        sa.Column("numerics", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text()),
        sa.Column("code", sa.Text()),
        sa.Column("torch", sa.Text()),
        sa.Column("processor", sa.Text()),
        sa.Column("compiler", sa.Text()),
        sa.Column("step_kind", sa.Text()),
        sa.Column("sources", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_fingerprints_study_id")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_fingerprints")),
    )
    op.add_column("trials", sa.Column("fingerprint", sa.Integer()))
    op.add_column("sources", sa.Column("successor", sa.Integer()))
    # Of trials that were trained before, the numerics and the version of their study's first launch
    # are known, and from 0006 on the kind of step. A trial that moved to another machine has
    # several kinds, and a row of its own for them.
    op.execute(
        """INSERT INTO fingerprints (study_id, number, numerics, version, step_kind, sources, created_at)
        SELECT id, row_number() OVER (PARTITION BY id ORDER BY step_kind) - 1, numerics, version, step_kind, '{}',
            created_at
        FROM (SELECT DISTINCT studies.id, studies.numerics, studies.version, step_kind, studies.created_at
            FROM trials JOIN studies ON studies.id = study_id
            WHERE trials.steps > 0 OR trials.state IN ('finished', 'pruned', 'diverged')) AS known"""
    )
    op.execute(
        """UPDATE trials SET fingerprint = (SELECT number FROM fingerprints
            WHERE fingerprints.study_id = trials.study_id
            AND coalesce(fingerprints.step_kind, '') = coalesce(trials.step_kind, ''))
        WHERE steps > 0 OR state IN ('finished', 'pruned', 'diverged')"""
    )
