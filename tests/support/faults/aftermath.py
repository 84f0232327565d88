"""What a command has left in a folder, read without pflbench: compared with what an undisturbed one leaves."""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.faults import witness

# What no two commands share: times, memory, numbers that are given in order, what is recorded of how a run was made.
_OF_ONE_COMMAND = {
    "run": {"id", "created_at", "started_at", "finished_at", "environment"},
    "round": {"seconds_receive", "seconds_update", "seconds_evaluate", "peak_memory"},
    "artifact": {"id"},
    "partition": {"id", "created_at"},
    "reference_run": {"created_at"},
    "sweep": {"created_at", "environment"},
}
# All else must be the same bits. Runs and partitions are known by their keys.
_BY_KEY = {
    "run_id": "(SELECT key || '/' || attempt FROM run WHERE run.id = run_id)",
    "partition_id": "(SELECT hash FROM partition WHERE partition.id = partition_id)",
}
_MADE_AT = re.compile(rb"20\d\d-\d\d-\d\dT[\d:]{8}Z")  # which a page says of itself
Tables = dict[str, Counter[tuple[Any, ...]]]


@contextmanager
def opened(database: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the file and of its log: opening the file itself would mend what the next command has to mend."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (database, Path(f"{database}-wal")):
            if path.exists():
                shutil.copy(path, folder)
        with closing(sqlite3.connect(Path(folder) / database.name)) as connection:
            yield connection


def tables(database: Path) -> Tables:
    """All rows of all tables, without what belongs to one command."""
    with opened(database) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
        return {name: Counter(_rows(connection, name)) for (name,) in names}


def _rows(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    every = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    names = [f'"{name}"' if name not in _BY_KEY else name for name in every if name not in _OF_ONE_COMMAND.get(table, ())]
    return connection.execute(f'SELECT {", ".join(_BY_KEY.get(name, name) for name in names)} FROM "{table}"').fetchall()


def counts(database: Path) -> witness.Counts:
    if not database.exists():
        return {}
    with opened(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return witness.counts(connection)


@dataclass(frozen=True)
class Left:
    """names: every file in the folder. databases: their rows. files: digests of the others, but for locks and checkpoints."""

    names: frozenset[str]
    databases: dict[str, Tables] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def left(folder: Path) -> Left:
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    databases = {name: tables(path) for name, path in paths.items() if path.suffix == ".db"}
    plain = {name: path for name, path in paths.items() if path.is_file() and ".db" not in name}
    files = {name: hashlib.sha256(_MADE_AT.sub(b"", path.read_bytes())).hexdigest() for name, path in plain.items()}
    return Left(frozenset(name for name in paths if not name.endswith((".db-shm", ".db-wal"))), databases, files)


def lost(found: Left, reference: Left) -> tuple[int, int]:
    """Runs, and rows of all tables, that the undisturbed command has and this one has not, bit for bit."""
    runs = rows = 0
    for name, wanted in reference.databases.items():
        here = found.databases.get(name, {})
        missing = {table: each - here.get(table, Counter()) for table, each in wanted.items()}
        rows += sum(each.total() for each in missing.values())
        runs += sum(missing.get("run", Counter()).values())
        if not missing.get("run") and any(missing.get(table) for table in ("round", "client_round", "series", "artifact")):
            runs += 1
    return runs, rows


def differences(found: Left, reference: Left) -> list[str]:
    """In words: what is there too much, too little, or is not the same."""
    told = [f"{name} is missing" for name in sorted(reference.names - found.names)]
    told += [f"{name} was left behind" for name in sorted(found.names - reference.names)]
    for name, wanted in reference.databases.items():
        here = found.databases.get(name, {})
        for table in sorted(wanted.keys() | here.keys()):
            each, others = here.get(table, Counter()), wanted.get(table, Counter())
            if each != others:
                told.append(f"{name}, {table}: {(others - each).total()} rows are missing, {(each - others).total()} are others")
    told += [f"{name} has other bytes" for name, digest in reference.files.items() if found.files.get(name, digest) != digest]
    return told
