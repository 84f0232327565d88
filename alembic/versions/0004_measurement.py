"""Measurements of machines by `pflbench bench`."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measurement",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(64), nullable=True),
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("setting", sa.JSON(), nullable=False),
        sa.Column("ceilings", sa.JSON(), nullable=False),
        sa.Column("arms", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
    )


def downgrade() -> None:
    op.drop_table("measurement")
