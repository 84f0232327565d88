"""Initial schema."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "partition",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scheme", sa.String(32), nullable=False),
        sa.Column("label", sa.String(64), nullable=False),
        sa.Column("dataset", sa.String(255), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("train_counts", sa.JSON(), nullable=False),
        sa.Column("test_counts", sa.JSON(), nullable=False),
        sa.Column("indices", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_partition"),
        sa.UniqueConstraint("hash", name="uq_partition_hash"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("message", sa.String(1000), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("dataset", sa.String(255), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("scheme", sa.String(32), nullable=False),
        sa.Column("partition_label", sa.String(64), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("join_ratio", sa.Double(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(64), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.Integer(), nullable=True),
        sa.Column("engine", sa.String(16), nullable=True),
        sa.Column("device", sa.String(128), nullable=True),
        sa.Column("partition_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.Column("started_at", sa.String(20), nullable=True),
        sa.Column("finished_at", sa.String(20), nullable=True),
        sa.ForeignKeyConstraint(["partition_id"], ["partition.id"], name="fk_run_partition_id_partition"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("key", "attempt", name="uq_run_key_attempt"),
    )
    op.create_index("ix_run_method_dataset", "run", ["method", "dataset"])
    op.create_index("ix_run_protocol", "run", ["protocol"])
    op.create_table(
        "artifact",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("dtype", sa.String(16), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_artifact_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_artifact"),
        sa.UniqueConstraint("run_id", "round", "name", name="uq_artifact_run_id_round_name"),
    )
    op.create_table(
        "client_round",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("client", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_client_round_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round", "client", name="pk_client_round"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "round",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("accuracy_mean", sa.Double(), nullable=True),
        sa.Column("accuracy_std", sa.Double(), nullable=True),
        sa.Column("test_loss", sa.Double(), nullable=True),
        sa.Column("train_loss", sa.Double(), nullable=True),
        sa.Column("participants", sa.Integer(), nullable=True),
        sa.Column("seconds_receive", sa.Double(), nullable=True),
        sa.Column("seconds_update", sa.Double(), nullable=True),
        sa.Column("seconds_evaluate", sa.Double(), nullable=True),
        sa.Column("params_up", sa.BigInteger(), nullable=True),
        sa.Column("params_down", sa.BigInteger(), nullable=True),
        sa.Column("scalars_up", sa.BigInteger(), nullable=True),
        sa.Column("scalars_down", sa.BigInteger(), nullable=True),
        sa.Column("bytes_up", sa.BigInteger(), nullable=True),
        sa.Column("bytes_down", sa.BigInteger(), nullable=True),
        sa.Column("peak_memory", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_round_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round", name="pk_round"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_round_run_accuracy", "round", ["run_id", "accuracy"])
    op.create_table(
        "series",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=False),
        sa.Column("test_loss", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_series_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "round", name="pk_series"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("series", "round", "client_round", "artifact", "run", "partition"):
        op.drop_table(table)
