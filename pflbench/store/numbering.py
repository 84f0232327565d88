"""Numbers of rows that were given out, those of removed rows as well: a copy of a table goes on after the last one.

SQLite keeps that of tables that are made so (`run`), a server of all.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy import Connection, func, select

from pflbench.store.schema import Base

KEPT_IN = "sqlite_sequence"
_NUMBERED = [table for table in Base.metadata.sorted_tables if "id" in table.columns]


def given_out(connection: Connection) -> dict[str, int]:
    """The last number of each table that has given one out, and of which it is kept."""
    if connection.dialect.name == "sqlite":
        if not keeps(connection):
            return {}
        query = f"SELECT name, max(seq) FROM {KEPT_IN} WHERE typeof(seq) = 'integer' GROUP BY name"
        return {str(name): int(last) for name, last in connection.exec_driver_sql(query)}
    if connection.dialect.name != "postgresql":
        return {}
    there = set(sa.inspect(connection).get_table_names())
    found: dict[str, int] = {}
    for table in _NUMBERED:
        if table.name in there:
            sequence = connection.scalar(select(func.pg_get_serial_sequence(f'"{table.name}"', "id")))
            last, used = connection.exec_driver_sql(f"SELECT last_value, is_called FROM {sequence}").one()
            found |= {table.name: int(last)} if used else {}
    return found


def go_on(connection: Connection, given_out: Mapping[str, int]) -> None:
    """The next row of a table gets the number after these, and after those of its rows."""
    there = set(sa.inspect(connection).get_table_names())
    for table in _NUMBERED:
        if table.name not in there:
            continue
        last = max(given_out.get(table.name, 0), connection.scalar(select(func.max(table.c.id))) or 0)
        if connection.dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(f'"{table.name}"', "id")
            connection.execute(select(func.setval(sequence, max(last, 1), last > 0)))
        elif connection.dialect.name == "sqlite" and table.dialect_options["sqlite"]["autoincrement"] and keeps(connection):
            connection.exec_driver_sql(f"DELETE FROM {KEPT_IN} WHERE name = ?", (table.name,))
            connection.exec_driver_sql(f"INSERT INTO {KEPT_IN} VALUES (?, ?)", (table.name, last))


def keeps(connection: Connection) -> bool:
    """Whether an SQLite file has a table for which it does so."""
    return connection.exec_driver_sql(f"SELECT 1 FROM sqlite_master WHERE name = '{KEPT_IN}'").first() is not None
