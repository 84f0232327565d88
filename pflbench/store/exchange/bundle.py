"""`runs bundle`: some runs as a database of their own, with hashes that show whether it was changed; read by `runs verify`.

Each run has the SHA-256 of all that is stored of it in its record, under DIGEST.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, select, update
from sqlalchemy.engine import Engine

from pflbench.errors import UserError
from pflbench.store.database import as_it_is, connect, to_url, writing
from pflbench.store.exchange import merge
from pflbench.store.exchange.backup import new_file
from pflbench.store.runs import Run
from pflbench.store.schema import RunRow

DIGEST = "sha256"  # the entry of a run's environment


@dataclass(frozen=True)
class Bundle:
    """A bundle that is open. digest: of its content, to be compared with a published one.

    changed: the runs whose content is not that of their digest.
    """

    content: merge.Other
    digest: str
    changed: tuple[int, ...]


def write(engine: Engine, runs: Sequence[Run], target: Path) -> str:
    """Copies runs into a new file, numbered from 1 in this order; returns the digest of its content.

    Raises UserError for a run without rounds, and if the file exists or cannot be written.
    """
    for run in runs:
        if run.last_round is None:
            raise UserError(f"Run {run.id} has no rounds yet.", "A bundle is for results: leave it out.")
    with new_file(target, "A bundle") as partial:
        copied = connect(to_url(str(partial)))
        try:
            # With the copy's own address paths stay as they are: "./own.npz" will be looked for beside the bundle.
            source = merge.Other(engine, Path(engine.url.database or "").name, copied.url, tuple(runs))
            for _ in merge.runs(copied, source, on_conflict="attempt"):
                pass
            digests = _sign(copied)
        finally:
            copied.dispose()
        with closing(sqlite3.connect(partial)) as file:
            file.execute("PRAGMA journal_mode=DELETE")  # readers leave no log beside it
    return _of_all(digests.values())


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """The bundle at `path`. Raises UserError if it is none, and as `merge.opened` for what `db check` would find."""
    how = "`pflbench runs bundle RUN... -o FILE` writes one."
    if not merge.is_sqlite(path):
        raise UserError(f"{path} is no bundle of runs.", how)
    with merge.opened(path) as content:
        recorded = {run.id: run.environment.get(DIGEST) for run in content.runs}
        if not recorded or (unsigned := [number for number, digest in recorded.items() if not digest]):
            why = f"run {unsigned[0]} has no hash" if recorded else "it has no runs"
            raise UserError(f"{path} is no bundle: {why}.", how)
        with as_it_is(to_url(str(path)), read_only=True) as (connection, _):  # before an older schema is upgraded
            found = _digests(connection)
        changed = tuple(number for number, digest in found.items() if digest != recorded[number])
        yield Bundle(content, _of_all(found.values()), changed)


def _sign(copied: Engine) -> dict[int, str]:
    """Writes the digest of each run into its record; returns them by run."""
    with writing(copied) as connection:
        digests = _digests(connection)
        for number, digest in digests.items():
            environment = connection.execute(select(RunRow.environment).where(RunRow.id == number)).scalar_one()
            signed = {**environment, DIGEST: digest}
            connection.execute(update(RunRow).where(RunRow.id == number).values(environment=signed))
    return digests


def _digests(connection: Connection) -> dict[int, str]:
    """The SHA-256 of each run: of its row, its partition, and its rows in every table that has the column run_id.

    A row is JSON with sorted names. Nulls are left out, so that new columns and tables do not change the hashes of older files.
    """
    columns = inspect(connection).get_multi_columns()
    tables = sorted(name for (_, name), found in columns.items() if any(column["name"] == "run_id" for column in found))
    parts = {row["id"]: row for row in _rows(connection, 'SELECT * FROM "partition"')}
    found = {}
    for run in _rows(connection, "SELECT * FROM run ORDER BY id"):
        number, partition = run.pop("id"), dict(parts.get(run.pop("partition_id", None), {}))
        partition.pop("id", None)
        environment = json.loads(run["environment"])
        environment.pop(DIGEST, None)
        lines = [_line("run", {**run, "environment": environment}), _line("partition", partition)]
        for table in tables:
            rows = _rows(connection, f'SELECT * FROM "{table}" WHERE run_id = {int(number)}')
            lines += sorted(_line(table, {k: v for k, v in row.items() if k not in ("id", "run_id")}) for row in rows)
        found[number] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return found


def _rows(connection: Connection, query: str) -> Iterator[dict[str, Any]]:
    """Rows as SQLite stores them, without nulls; JSON is text."""
    for row in connection.exec_driver_sql(query).mappings():
        yield {name: value for name, value in row.items() if value is not None}


def _line(table: str, row: Mapping[str, Any]) -> str:
    plain = {name: hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value for name, value in row.items()}
    return json.dumps([table, plain], sort_keys=True)


def _of_all(digests: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
