"""Runs migrations on the connection that `pflbench.store.database` hands over (it holds the lock and the transaction).

Started by the `alembic` command itself, for developers, it opens the default database (PFLBENCH_DB).
"""

from __future__ import annotations

import os

from sqlalchemy import Connection, inspect

from alembic import context
from pflbench.store import database as db
from pflbench.store.schema import Base


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=db.VERSION_TABLE,
        render_as_batch=True,  # SQLite alters a table by copying it
        transactional_ddl=True,  # SQLite can: db opens its transactions explicitly
    )
    # Which numbers a table has given out SQLite forgets with the table: one that a migration copies would give them out again.
    numbers = "SELECT name, max(seq) FROM sqlite_sequence GROUP BY name"
    given_out = {row[0]: row[1] for row in connection.exec_driver_sql(numbers)} if _has_numbers(connection) else {}
    with context.begin_transaction():
        context.run_migrations()
    for table, last in given_out.items():
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        connection.exec_driver_sql("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, last))


def _has_numbers(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite" and inspect(connection).has_table("sqlite_sequence")


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with db.migrating(db.open_engine(db.to_url(os.environ.get("PFLBENCH_DB") or "pflbench.db"))) as own:
        _run(own)
