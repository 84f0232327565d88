"""Validation, FLOPs and simulated time of rounds; new clients."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("round", table_kwargs={"sqlite_with_rowid": False}) as table:
        for name in ("val_accuracy", "val_loss", "seconds_simulated"):
            table.add_column(sa.Column(name, sa.Double(), nullable=True))
        table.add_column(sa.Column("flops", sa.BigInteger(), nullable=True))
        table.create_check_constraint(op.f("ck_round_val_accuracy"), "val_accuracy >= 0 AND val_accuracy <= 1")
        for name in ("flops", "seconds_simulated"):
            table.create_check_constraint(op.f(f"ck_round_{name}"), f"{name} >= 0")
    with op.batch_alter_table("client_round", table_kwargs={"sqlite_with_rowid": False}) as table:
        table.add_column(sa.Column("val_correct", sa.Integer(), nullable=True))
        table.add_column(sa.Column("val_total", sa.Integer(), nullable=True))
        table.add_column(sa.Column("val_loss", sa.Double(), nullable=True))
        table.create_check_constraint(op.f("ck_client_round_val_correct"), "val_correct >= 0 AND val_correct <= val_total")
    op.create_table(
        "new_client",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("client", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epochs", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("correct", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_new_client_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "round", "client", "epochs", name="pk_new_client"),
        *(sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_new_client_{name}")) for name in ("round", "client", "epochs")),
        sa.CheckConstraint("correct >= 0 AND correct <= total", name=op.f("ck_new_client_correct")),
        sqlite_with_rowid=False,
    )
