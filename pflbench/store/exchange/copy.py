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


def copy(source: Engine, target: Engine, progress: Callable[[str, int, int], None] | None = None) -> dict[str, int]:
    """Copies a snapshot of all rows in one transaction; returns their number by table.

    progress: called with a table's name, the number of copied rows, and the number of all its rows. Raises UserError if the
    target has rows, or refuses one. Then nothing was copied.
    """
    tables = Base.metadata.sorted_tables
    with reading(source) as reader, writing(target) as writer:
        if reader.dialect.name == "postgresql":  # SQLite's transactions hide later commits of other processes by themselves
            reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        _require_empty(writer, tables, place(target.url))
        counts = {table.name: int(reader.scalar(select(func.count()).select_from(table)) or 0) for table in tables}
        for table in tables:
            done = 0
            for rows in chunks(reader, select(table).order_by(*table.primary_key)):
                try:
                    writer.execute(table.insert(), [_located(table, row, source.url, target.url) for row in rows])
                except (DataError, IntegrityError) as error:
                    raise UserError(
                        f"A row of {table.name} cannot be copied: {str(error.orig).splitlines()[0]}.",
                        "Nothing was copied. `pflbench db check` looks for damage.",
                    ) from None
                done += len(rows)
                if progress is not None:
                    progress(table.name, done, counts[table.name])
        _advance_ids(writer, tables)
    return counts


def chunks(connection: Connection, query: Any) -> Iterator[list[dict[str, Any]]]:
    """The rows of a query: single ones with arrays, which can have many megabytes, and few with specifications."""
    kinds = {type(column.type) for column in query.selected_columns}
    size = 1 if sa.LargeBinary in kinds else 100 if sa.JSON in kinds else 5_000
    with friendly(connection.engine.url):  # an error names this database, not the one that is written
        for rows in connection.execute(query, execution_options={"yield_per": size}).mappings().partitions():
            yield [dict(row) for row in rows]


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
    query = select(func.count()).select_from(RunRow).where(RunRow.status.not_in(("finished", "diverged")))
    with reading(target) as connection:
        return int(connection.scalar(query) or 0)


def _require_empty(connection: Connection, tables: list[Table], name: str) -> None:
    for table in tables:
        if connection.execute(select(sa.literal(1)).select_from(table).limit(1)).first():
            raise UserError(
                f"{name} is not empty: there are rows in {table.name}.",
                "Copy into a new database; `pflbench import` adds the runs of a file to one that has some.",
            )


def _located(table: Table, row: dict[str, Any], source: URL, target: URL) -> dict[str, Any]:
    """The row with its paths relative to the target: the data are not moved."""
    if table.name == SweepRow.__tablename__:
        return sweeps.located(row, lambda path: paths.moved(path, source, target))
    if table.name == RunRow.__tablename__:
        return {**row, "spec": paths.in_spec(row["spec"], lambda path: paths.moved(path, source, target, paths.kept_or_named))}
    return row
