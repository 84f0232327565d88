"""Sweeps: many runs that were asked for together."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sweep",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("specs", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("cancelled_at", sa.String(20), nullable=True),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweep"),
        sa.UniqueConstraint("name", name="uq_sweep_name"),
    )


def downgrade() -> None:
    op.drop_table("sweep")
