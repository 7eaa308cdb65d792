"""Trials that go on from the state of another: its number, and the step at which they took over."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name in ("parent", "parent_step"):
        op.add_column("trials", sa.Column(name, sa.BigInteger()))
