"""Accuracy series that another program recorded."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reference_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("file", sa.String(255), nullable=False),
        sa.Column("dataset", sa.String(255), nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("algorithm", sa.String(64), nullable=False),
        sa.Column("goal", sa.String(64), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reference_run"),
        sa.UniqueConstraint("hash", name="uq_reference_run_hash"),
    )
    op.create_table(
        "reference_round",
        sa.Column("reference_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("round", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("accuracy", sa.Double(), nullable=False),
        sa.Column("auc", sa.Double(), nullable=True),
        sa.Column("train_loss", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["reference_id"], ["reference_run.id"], name="fk_reference_round_reference_id_reference_run", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("reference_id", "round", name="pk_reference_round"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("reference_round")
    op.drop_table("reference_run")
