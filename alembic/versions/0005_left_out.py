"""Samples that no client holds."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("partition", sa.Column("left_out", sa.Integer(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("partition") as table:
        table.drop_column("left_out")
