"""What is in a database, and whether it is sound; an old schema is read as it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError, OperationalError

from pflbench.store.database import VERSION_TABLE, as_it_is, head
from pflbench.store.failures import place, sqlite_path
from pflbench.store.schema import Base


def info(url: str) -> dict[str, Any]:
    """What is in the database. `bytes` is None where nobody says."""
    with as_it_is(url) as (connection, found):
        engine = connection.engine
        path = sqlite_path(engine.url)
        runs = connection.exec_driver_sql("SELECT status, count(*) FROM run GROUP BY status ORDER BY status").all()
        return {
            "database": place(engine.url),
            "kind": engine.dialect.name,
            "bytes": path.stat().st_size if path else _bytes(connection),
            "schema": found,
            "newest_schema": head(),
            "runs": {str(status): int(count) for status, count in runs},
            **{f"{table}s": _count(connection, table) for table in ("round", "partition", "artifact")},
        }


def check(url: str) -> list[str]:
    """Problems of the database, in words; an empty list means a sound one. Reads every row."""
    with as_it_is(url) as (connection, found):
        problems = []
        if connection.engine.dialect.name == "sqlite":
            damage = _damage(connection)
            if damage:
                return damage
            lost = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
            problems += [f"{n} rows of {table} belong to no {parent}" for (table, parent), n in lost.items()]
        if found != head():
            return [*problems, f"the schema is {found}, not {head()}: `pflbench db upgrade`"]
        return problems + _differences(connection) + _contradictions(connection)


def _bytes(connection: Connection) -> int | None:
    if connection.dialect.name != "postgresql":
        return None
    return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())


def _count(connection: Connection, table: str) -> int:
    return int(connection.exec_driver_sql(f'SELECT count(*) FROM "{table}"').scalar_one())


def _damage(connection: Connection) -> list[str]:
    """What SQLite's own check of the file says, as far as it gets."""
    connection.exec_driver_sql("PRAGMA ignore_check_constraints=ON")  # rows that the schema would refuse are no damage
    try:
        lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    except OperationalError:  # locked, say: the file may be sound
        raise
    except DatabaseError as error:
        return [f"damaged: {error.orig}"]
    return [f"damaged: {line}" for line in lines if line != "ok"]


def _differences(connection: Connection) -> list[str]:
    """Where the tables are not those of the models."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return [f"not the tables of schema {head()}: {change}" for change in compare_metadata(context, Base.metadata)]


def _contradictions(connection: Connection) -> list[str]:
    """Rows that contradict each other: each rule is checked in one pass over a table."""
    problems = []
    for what, query in _RULES.items():
        runs = connection.exec_driver_sql(query).scalars().all()
        if runs:
            problems.append(f"{what}: run {', '.join(map(str, runs[:10]))}{' and more' if len(runs) > 10 else ''}")
    return problems


_RULES = {
    "clients' results without their round": """
        SELECT DISTINCT c.run_id FROM client_round c LEFT JOIN round r ON r.run_id = c.run_id AND r.round = c.round
        WHERE r.run_id IS NULL ORDER BY 1""",
    "accuracy that is not that of the round's clients": """
        SELECT DISTINCT r.run_id FROM round r JOIN
        (SELECT run_id, round, 1.0 * sum(correct) / sum(total) AS pooled FROM client_round GROUP BY run_id, round
         HAVING sum(total) > 0) c
        ON c.run_id = r.run_id AND c.round = r.round WHERE abs(r.accuracy - c.pooled) > 1e-6 ORDER BY 1""",
    "more correct predictions than test samples": """
        SELECT DISTINCT run_id FROM client_round WHERE correct < 0 OR correct > total ORDER BY 1""",
    "finished, but rounds are missing": """
        SELECT id FROM run WHERE status = 'finished'
        AND (SELECT count(*) FROM round WHERE run_id = run.id) != run.rounds + 1 ORDER BY 1""",
}
