"""What a database holds, by SQL of the tests' own."""

from __future__ import annotations

import sqlite3
from typing import Any

from sqlalchemy import Engine


def sql(engine: Engine, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with sqlite3.connect(str(engine.url.database)) as connection:
        return connection.execute(query, values).fetchall()
