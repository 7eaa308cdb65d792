"""How a study's numbers were computed: the version of the numerics, and by which step each trial was trained."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("studies", sa.Column("numerics", sa.Integer(), nullable=False, server_default=sa.text("1")))
    op.add_column("trials", sa.Column("step_kind", sa.Text()))
