"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATUSES = "'queued', 'running', 'finished', 'failed', 'diverged', 'interrupted'"
_COUNTS = ("params_up", "params_down", "scalars_up", "scalars_down", "bytes_up", "bytes_down", "peak_memory")


def upgrade() -> None:
    op.create_table(
        "partition",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", _text(64), nullable=False),
        sa.Column("scheme", _text(32), nullable=False),
        sa.Column("label", _text(64), nullable=False),
        sa.Column("dataset", _text(255), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("classes", sa.JSON(), nullable=False),
        sa.Column("train_counts", sa.JSON(), nullable=False),
        sa.Column("test_counts", sa.JSON(), nullable=False),
        sa.Column("left_out", sa.Integer(), nullable=True),
        sa.Column("indices", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", _text(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_partition"),
        sa.UniqueConstraint("hash", name="uq_partition_hash"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", _text(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("protocol", _text(16), nullable=False),
        sa.Column("status", _text(16), nullable=False),
        sa.Column("message", _text(1000), nullable=True),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("dataset", _text(255), nullable=False),
        sa.Column("model", _text(64), nullable=False),
        sa.Column("scheme", _text(32), nullable=False),
        sa.Column("partition_label", _text(64), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("join_ratio", sa.Double(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("method", _text(64), nullable=False),
        sa.Column("seed", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False),
        sa.Column("parameters", sa.Integer(), nullable=True),
        sa.Column("engine", _text(16), nullable=True),
        sa.Column("device", _text(128), nullable=True),
        sa.Column("partition_id", sa.Integer(), nullable=True),
        sa.Column("created_at", _text(20), nullable=False),
        sa.Column("started_at", _text(20), nullable=True),
        sa.Column("finished_at", _text(20), nullable=True),
        sa.ForeignKeyConstraint(["partition_id"], ["partition.id"], name="fk_run_partition_id_partition"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("key", "attempt", name="uq_run_key_attempt"),
        _check("run", "status", f"status IN ({_STATUSES})"),
        _check("run", "join_ratio", "join_ratio > 0 AND join_ratio <= 1"),
        *_at_least(1, "run", "attempt", "clients", "rounds"),
        *_at_least(0, "run", "seed", "parameters"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_run_method_dataset", "run", ["method", "dataset"])
    op.create_index("ix_run_protocol", "run", ["protocol"])
    op.create_table(
        "artifact",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("name", _text(64), nullable=False),
        sa.Column("dtype", _text(16), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        _of_run("artifact"),
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
        _of_run("client_round"),
        sa.PrimaryKeyConstraint("run_id", "round", "client", name="pk_client_round"),
        *_at_least(0, "client_round", "round", "client"),
        _check("client_round", "correct", "correct >= 0 AND correct <= total"),
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
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in _COUNTS),
        _of_run("round"),
        sa.PrimaryKeyConstraint("run_id", "round", name="pk_round"),
        *_fractions("round", "accuracy", "accuracy_mean", "accuracy_std"),
        *_at_least(0, "round", "round", "participants", "seconds_receive", "seconds_update", "seconds_evaluate", *_COUNTS),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_round_run_accuracy", "round", ["run_id", "accuracy"])
    op.create_table(
        "series",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", _text(32), nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=False),
        sa.Column("test_loss", sa.Double(), nullable=False),
        _of_run("series"),
        sa.PrimaryKeyConstraint("run_id", "name", "round", name="pk_series"),
        *_at_least(0, "series", "round"),
        *_fractions("series", "accuracy"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reference_run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("hash", _text(64), nullable=False),
        sa.Column("file", _text(255), nullable=False),
        sa.Column("dataset", _text(255), nullable=False),
        sa.Column("method", _text(64), nullable=False),
        sa.Column("algorithm", _text(64), nullable=False),
        sa.Column("goal", _text(64), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("created_at", _text(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reference_run"),
        sa.UniqueConstraint("hash", name="uq_reference_run_hash"),
    )
    op.create_table(
        "reference_round",
        sa.Column("reference_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("accuracy", sa.Double(), nullable=False),
        sa.Column("auc", sa.Double(), nullable=True),
        sa.Column("train_loss", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["reference_id"], ["reference_run.id"], name="fk_reference_round_reference_id_reference_run", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("reference_id", "round", name="pk_reference_round"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sweep",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", _text(64), nullable=False),
        sa.Column("specs", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("cancelled_at", _text(20), nullable=True),
        sa.Column("created_at", _text(20), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweep"),
        sa.UniqueConstraint("name", name="uq_sweep_name"),
    )


def _text(length: int) -> Any:
    """SQLite takes longer text as well, and orders it by code points; so does PostgreSQL with this type."""
    return sa.String(length).with_variant(sa.String(collation="C"), "postgresql")


def _of_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=f"fk_{table}_run_id_run", ondelete="CASCADE")


def _check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))


def _at_least(least: int, table: str, *columns: str) -> list[sa.CheckConstraint]:
    return [_check(table, column, f"{column} >= {least}") for column in columns]


def _fractions(table: str, *columns: str) -> list[sa.CheckConstraint]:
    return [_check(table, column, f"{column} >= 0 AND {column} <= 1") for column in columns]
