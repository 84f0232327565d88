"""What a process had committed when it died: its own word, written down at each commit by another way than the database."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLES = ("run", "round", "client_round", "series", "artifact", "partition", "reference_run", "reference_round", "sweep")
Counts = dict[str, int]
asking = False  # its own statements are none of the command's


def counts(connection: sqlite3.Connection) -> Counts:
    """Rows of each table that there is."""
    found = {}
    for table in TABLES:
        try:
            found[table] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        except sqlite3.OperationalError:  # an old schema
            continue
    return found


def testify(into: str) -> None:
    """In the child: every connection tells at a commit what will be there, and after it that it is."""
    log = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    connect = sqlite3.dbapi2.connect

    class Watched(sqlite3.Connection):
        def commit(self) -> None:
            if not self.in_transaction:
                return
            global asking
            asking = True
            name = self.execute("PRAGMA database_list").fetchone()[2]
            told = json.dumps([name, counts(self)])
            asking = False
            os.write(log, f"will {told}\n".encode())
            super().commit()
            os.write(log, f"has {told}\n".encode())

    def watched(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        return connect(*arguments, **{"factory": Watched, **settings})

    sqlite3.dbapi2.connect = sqlite3.connect = watched  # type: ignore[assignment]


@dataclass(frozen=True)
class Testimony:
    """Of one database: what was committed last, and what was to be next, if it died in a commit."""

    has: Counts
    will: Counts | None

    def missing(self, found: Counts) -> int:
        """Rows that were committed and are not there; 0 where what is there is what was to be next."""
        if self.will is not None and found == self.will:
            return 0
        return sum(max(0, count - found.get(table, 0)) for table, count in self.has.items())


def heard(log: Path, database: Path) -> Testimony:
    has: Counts = {}
    will: Counts | None = None
    for line in log.read_text().splitlines() if log.exists() else []:
        word, _, told = line.partition(" ")
        name, found = json.loads(told)
        if Path(name) == database:
            has, will = (has, found) if word == "will" else (found, None)
    return Testimony(has, will)
