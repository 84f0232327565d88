"""The paper's values."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reference",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(128), nullable=False),
        sa.Column("table", sa.String(16), nullable=False),
        sa.Column("setting", sa.JSON(), nullable=False),
        sa.Column("dataset", sa.String(64), nullable=False),
        sa.Column("backbone", sa.String(64), nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("metric", sa.String(64), nullable=False),
        sa.Column("mean", sa.Double(), nullable=True),
        sa.Column("std", sa.Double(), nullable=True),
        sa.Column("version", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reference"),
    )
    op.create_index("ix_reference_table", "reference", ["table"])


def downgrade() -> None:
    op.drop_table("reference")
