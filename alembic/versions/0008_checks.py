"""Numbers of runs that are never given out again, and what rows may hold. Rows that hold something else stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_STATUSES = "'queued', 'running', 'finished', 'failed', 'diverged', 'interrupted'"
_COSTS = (
    *("round", "participants", "seconds_receive", "seconds_update", "seconds_evaluate", "params_up", "params_down"),
    *("scalars_up", "scalars_down", "bytes_up", "bytes_down", "peak_memory"),
)
_CHECKS = {
    "run": {
        "status": f"status IN ({_STATUSES})",
        "join_ratio": "join_ratio > 0 AND join_ratio <= 1",
        **{column: f"{column} >= 1" for column in ("attempt", "clients", "rounds")},
        **{column: f"{column} >= 0" for column in ("seed", "parameters")},
    },
    "round": {
        **{column: f"{column} >= 0 AND {column} <= 1" for column in ("accuracy", "accuracy_mean", "accuracy_std")},
        **{column: f"{column} >= 0" for column in _COSTS},
    },
    "client_round": {"round": "round >= 0", "client": "client >= 0", "correct": "correct >= 0 AND correct <= total"},
    "series": {"round": "round >= 0", "accuracy": "accuracy >= 0 AND accuracy <= 1"},
}
# What SQLite does not tell of a table that is to be copied.
_KINDS: dict[str, dict[str, Any]] = {name: {"sqlite_with_rowid": False} for name in ("round", "client_round", "series")}


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        for table, checks in _CHECKS.items():
            for name, condition in checks.items():
                broken = op.get_bind().exec_driver_sql(f'SELECT 1 FROM "{table}" WHERE NOT ({condition}) LIMIT 1').first()
                options = {"postgresql_not_valid": True} if broken else {}
                op.create_check_constraint(op.f(f"ck_{table}_{name}"), table, condition, **options)
        return
    with _unchecked():
        for table, checks in _CHECKS.items():
            kind = {"sqlite_autoincrement": True} if table == "run" else _KINDS.get(table, {})
            with op.batch_alter_table(table, recreate="always", table_kwargs=kind) as batch:
                for name, condition in checks.items():
                    batch.create_check_constraint(op.f(f"ck_{table}_{name}"), condition)


def downgrade() -> None:
    for table, checks in _CHECKS.items():
        with op.batch_alter_table(table, table_kwargs=_KINDS.get(table, {})) as batch:
            for name in checks:
                batch.drop_constraint(op.f(f"ck_{table}_{name}"), type_="check")


@contextmanager
def _unchecked() -> Iterator[None]:
    """Earlier versions took in what they found."""
    op.execute("PRAGMA ignore_check_constraints=ON")
    try:
        yield
    finally:
        op.execute("PRAGMA ignore_check_constraints=OFF")
