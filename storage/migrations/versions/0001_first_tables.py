"""The first tables: studies, architectures, trials, metrics, workers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

IDENTIFIER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("space_hash", sa.Text(), nullable=False),
        sa.Column("objective", sa.Text(), nullable=False),
        sa.Column("direction", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("trials", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint("direction IN ('minimize', 'maximize')", name=op.f("ck_studies_direction")),
        sa.CheckConstraint("state IN ('running', 'stopped', 'finished', 'failed')", name=op.f("ck_studies_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint("name", name=op.f("uq_studies_name")),
    )
    op.create_table(
        "architectures",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", IDENTIFIER, nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("knots", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.CheckConstraint("component IN ('mlp', 'attention')", name=op.f("ck_architectures_component")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_architectures_study_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_architectures")),
        sa.UniqueConstraint("trial_id", "component", name=op.f("uq_architectures_trial_id_component")),
    )
    op.create_table(
        "trials",
        sa.Column("id", IDENTIFIER, nullable=False, autoincrement=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("group_number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text()),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("objective", sa.Double()),
        sa.Column("architecture_id", sa.Integer()),
        sa.Column("worker", sa.Text()),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", TIME),
        sa.Column("error", sa.Text()),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("draws", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'finished', 'pruned', 'diverged', 'failed')", name=op.f("ck_trials_state")
        ),
        sa.CheckConstraint("objective IS NULL OR state IN ('finished', 'pruned')", name=op.f("ck_trials_objective")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_trials_study_id")),
        sa.ForeignKeyConstraint(["architecture_id"], ["architectures.id"], name=op.f("fk_trials_architecture_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trials")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_trials_study_id_number")),
    )
    op.create_index(op.f("ix_trials_study_id_state"), "trials", ["study_id", "state"])
    op.create_index(op.f("ix_trials_study_id_objective"), "trials", ["study_id", "objective"])
    op.create_table(
        "metrics",
        sa.Column("trial_id", IDENTIFIER, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name=op.f("fk_metrics_trial_id")),
        sa.PrimaryKeyConstraint("trial_id", "step", "name", "variant", "condition", name=op.f("pk_metrics")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "workers",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("lease_until", TIME),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_workers_study_id")),
        sa.PrimaryKeyConstraint("study_id", "id", name=op.f("pk_workers")),
    )
