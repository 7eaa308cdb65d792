"""A second objective, constraints, and whether a trial keeps them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("studies", sa.Column("second_objective", sa.Text()))
    op.add_column("trials", sa.Column("second_objective", sa.Double()))
    op.add_column("trials", sa.Column("constraints", sa.JSON()))
    op.add_column("trials", sa.Column("feasible", sa.Boolean(create_constraint=False)))
