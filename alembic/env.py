"""Runs migrations on the connection that `pflbench.store.database` hands over (it holds the lock and the transaction).

Started by the `alembic` command itself, for developers, it opens the default database (PFLBENCH_DB).
"""

from __future__ import annotations

from sqlalchemy import Connection

from alembic import context
from pflbench.store import database as db
from pflbench.store import numbering
from pflbench.store.schema import Base


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=db.VERSION_TABLE,
        render_as_batch=True,  # SQLite alters a table by copying it
        transactional_ddl=True,  # SQLite can: db opens its transactions explicitly
    )
    given_out = numbering.given_out(connection)
    with context.begin_transaction():
        context.run_migrations()
    if connection.dialect.name == "sqlite":  # it forgets with a table that is copied which numbers it has given out
        numbering.go_on(connection, given_out)


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with db.migrating(db.open_engine(db.default_url())) as own:
        _run(own)
