"""`db info` and `db check`. Databases with an old schema are not upgraded."""

from __future__ import annotations

import warnings
from typing import Any

from sqlalchemy import CheckConstraint, Connection, inspect
from sqlalchemy.exc import DatabaseError, OperationalError

from pflbench.store import rules
from pflbench.store.database import VERSION_TABLE, as_it_is, head, to_url
from pflbench.store.failures import place, sqlite_path
from pflbench.store.schema import Base


def info(database: str) -> dict[str, Any]:
    """Facts about a database, a path or a URL. `bytes` is None if the size is unknown."""
    with as_it_is(to_url(database)) as (connection, schema):
        path, kind = sqlite_path(connection.engine.url), connection.dialect.name

        def ask(query: str) -> Any:
            return connection.exec_driver_sql(query)

        on_server = ask("SELECT pg_database_size(current_database())").scalar() if kind == "postgresql" else None
        runs = ask("SELECT status, count(*) FROM run GROUP BY status ORDER BY status").all()
        return {
            "database": place(connection.engine.url),
            "kind": kind,
            "bytes": path.stat().st_size if path else on_server,
            "schema": schema,
            "newest_schema": head(),
            "runs": {str(status): int(count) for status, count in runs},
            **{f"{table}s": ask(f'SELECT count(*) FROM "{table}"').scalar() for table in ("round", "partition", "artifact")},
        }


def check(database: str) -> list[str]:
    """The problems of a database, a path or a URL, one per line; none if it is sound. Reads every row."""
    with as_it_is(to_url(database)) as (connection, schema):
        if connection.dialect.name == "sqlite" and (damage := _damage(connection)):
            return damage
        if schema != head():
            return [f"the schema is {schema}, not {head()}: `pflbench db upgrade`"]
        return [*_differences(connection), *rules.problems(connection)]


def _damage(connection: Connection) -> list[str]:
    """The problems that SQLite's own check of the file finds."""
    connection.exec_driver_sql("PRAGMA ignore_check_constraints=ON")  # rows that break a check are found by `rules`
    try:
        lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    except OperationalError:  # e.g. locked: the file may be sound
        raise
    except DatabaseError as error:
        return [f"damaged: {error.orig}"]
    return [f"damaged: {line}" for line in lines if line != "ok"]


def _differences(connection: Connection) -> list[str]:
    """Differences between the tables and the models of `schema`."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    with warnings.catch_warnings(action="ignore"):  # about checks that PostgreSQL has not applied to older rows
        changes = [str(change) for change in compare_metadata(context, Base.metadata)]
        found = inspect(connection).get_multi_check_constraints().values()
    present = {check["name"] for checks in found for check in checks}
    constraints = (constraint for table in Base.metadata.sorted_tables for constraint in table.constraints)
    wanted = {str(constraint.name) for constraint in constraints if isinstance(constraint, CheckConstraint)}
    changes += [f"no check {name}" for name in sorted(wanted - present)]
    return [f"not the tables of schema {head()}: {change}" for change in changes]
