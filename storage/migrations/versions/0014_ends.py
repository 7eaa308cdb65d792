"""Tokens that expire; and the order in which a study's trials ended, whatever the clocks."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("trials", sa.Column("ended", sa.BigInteger))
    op.execute(
        "UPDATE trials SET ended = ranks.place FROM (SELECT id, row_number() OVER "
        "(PARTITION BY study_id ORDER BY finished_at, number) AS place FROM trials WHERE finished_at IS NOT NULL) "
        "AS ranks WHERE trials.id = ranks.id"
    )
    op.create_index(op.f("ix_trials_study_id_ended"), "trials", ["study_id", "ended"])
