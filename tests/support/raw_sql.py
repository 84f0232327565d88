"""What a database holds, by SQL of the tests' own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Engine


def sql(database: Engine | Path | str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of a query. A statement that changes rows is committed; the schema's checks and foreign keys do not hold."""
    path = database.url.database if isinstance(database, Engine) else database
    with closing(sqlite3.connect(str(path))) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        return connection.execute(query, values).fetchall()
