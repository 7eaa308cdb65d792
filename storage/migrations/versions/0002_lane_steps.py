"""Lane utilisation: what each worker's lanes trained, and what they would have with none free."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for name in ("steps", "room"):
        op.add_column("workers", sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0")))
