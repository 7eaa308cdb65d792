"""Digests of the files that a study's trials read."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("studies", sa.Column("data", sa.JSON()))
