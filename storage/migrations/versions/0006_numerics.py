"""The version of the numerics of a study, and the kind of optimizer step of each trial."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("studies", sa.Column("numerics", sa.Integer(), nullable=False, server_default=sa.text("1")))
    op.add_column("trials", sa.Column("step_kind", sa.Text()))
