"""What a server needs: claims on runs; and on PostgreSQL text of any length, ordered as SQLite does, and large seeds."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_VERSION_TABLE = "pflbench_version"


def upgrade() -> None:
    text = sa.String(collation="C")
    for table, column in _on_postgresql():
        op.alter_column(table, column["name"], type_=text, existing_nullable=column["nullable"])
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("run", "seed", type_=sa.BigInteger())
    op.create_table(
        "claim",
        sa.Column("key", sa.String(16).with_variant(text, "postgresql"), nullable=False),
        sa.Column("owner", sa.String(128).with_variant(text, "postgresql"), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_claim"),
    )


def downgrade() -> None:
    """Lengths do not come back: what is stored may be longer."""
    op.drop_table("claim")
    for table, column in _on_postgresql():
        op.alter_column(table, column["name"], type_=sa.String(collation="default"), existing_nullable=column["nullable"])


def _on_postgresql() -> list[tuple[str, sa.engine.interfaces.ReflectedColumn]]:
    """All columns of text."""
    if op.get_bind().dialect.name != "postgresql":
        return []
    found = sa.inspect(op.get_bind())
    tables = [table for table in found.get_table_names() if table != _VERSION_TABLE]
    return [(table, column) for table in tables for column in found.get_columns(table) if isinstance(column["type"], sa.String)]
