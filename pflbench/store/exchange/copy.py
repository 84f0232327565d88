"""`db copy`: copies a whole database, e.g. from SQLite to PostgreSQL. Rows keep their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, Table, func, select
from sqlalchemy.exc import DataError, IntegrityError

from pflbench.errors import UserError
from pflbench.store import paths, sweeps
from pflbench.store.database import reading, writing
from pflbench.store.failures import friendly, place
from pflbench.store.schema import Base, RunRow, SweepRow

Progress = Callable[[str, int, int], None]
"""Called with a table's name, the number of copied rows, and the number of all its rows."""

# Rows per insert: an array can have many megabytes, a specification a few kilobytes.
_ROWS, _OF_JSON, _OF_BLOBS = 5_000, 100, 1


def copy(source: Engine, target: Engine, progress: Progress = lambda table, done, rows: None) -> dict[str, int]:
    """Copies a snapshot of all rows in one transaction; returns their number by table.

    Raises UserError if the target has rows, or refuses one. Then nothing was copied.
    """
    tables = Base.metadata.sorted_tables
    counts = {}
    with reading(source) as reader, writing(target) as writer:
        _read_snapshot(reader)
        _require_empty(writer, tables, place(target.url))
        for table in tables:
            rows = int(reader.scalar(select(func.count()).select_from(table)) or 0)
            done = 0
            for chunk in _chunks(reader, table):
                _insert(writer, table, [_located(table, row, source.url, target.url) for row in chunk])
                done += len(chunk)
                progress(table.name, done, rows)
            counts[table.name] = done
        _advance_ids(writer, tables)
    return counts


def _advance_ids(connection: Connection, tables: list[Table]) -> None:
    """Makes new rows get ids after those that were copied. SQLite does so by itself."""
    if connection.dialect.name != "postgresql":
        return
    for table in tables:
        if "id" in table.columns:
            last = int(connection.scalar(select(func.max(table.c.id))) or 0)
            connection.execute(select(func.setval(func.pg_get_serial_sequence(f'"{table.name}"', "id"), max(last, 1), last > 0)))


def unfinished(target: Engine) -> int:
    """The number of unfinished runs, whose checkpoints were not copied."""
    run = Base.metadata.tables["run"]
    query = select(func.count()).select_from(run).where(run.c.status.not_in(("finished", "diverged")))
    with reading(target) as connection:
        return int(connection.scalar(query) or 0)


def _read_snapshot(connection: Connection) -> None:
    """Hides later commits of other processes. SQLite's transactions do so by themselves."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def _require_empty(connection: Connection, tables: list[Table], name: str) -> None:
    for table in tables:
        if connection.execute(select(sa.literal(1)).select_from(table).limit(1)).first():
            raise UserError(
                f"{name} is not empty: there are rows in {table.name}.",
                "Copy into a new database; `pflbench import` adds the runs of a file to one that has some.",
            )


def _chunks(connection: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    kinds = [column.type for column in table.columns]
    size = _OF_JSON if any(isinstance(kind, sa.JSON) for kind in kinds) else _ROWS
    size = _OF_BLOBS if any(isinstance(kind, sa.LargeBinary) for kind in kinds) else size
    query = select(table).order_by(*table.primary_key)
    with friendly(connection.engine.url):  # an error names this database, not the one that is written
        for part in connection.execution_options(yield_per=size).execute(query).mappings().partitions():
            yield [dict(row) for row in part]


def _located(table: Table, row: dict[str, Any], source: URL, target: URL) -> dict[str, Any]:
    """The row with its paths relative to the target: the data are not moved."""
    if table.name == SweepRow.__tablename__:
        return sweeps.located(row, lambda path: paths.moved(path, source, target))
    if table.name == RunRow.__tablename__:
        return {**row, "spec": paths.in_spec(row["spec"], lambda path: paths.moved(path, source, target, paths.kept_or_named))}
    return row


def _insert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    try:
        connection.execute(table.insert(), rows)
    except (DataError, IntegrityError) as error:
        reason = str(error.orig).splitlines()[0]
        raise UserError(
            f"A row of {table.name} cannot be copied: {reason}.", "Nothing was copied. `pflbench db check` looks for damage."
        ) from None
