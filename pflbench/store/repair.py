"""What can be read of a damaged SQLite file, saved into a new one. The damaged one is only read.

A table is read by ranges of its keys, around the pages that cannot be read. What follows from other rows is derived again;
what contradicts other rows and could be either is left as it is, for `check` to name.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from pflbench.errors import UserError
from pflbench.spec import RunSpec, key_of, protocol_of
from pflbench.store import database as db
from pflbench.store import inspection, journal
from pflbench.store.failures import BUSY_SECONDS, ELSEWHERE, friendly, sqlite_path
from pflbench.store.files import aside_by_name
from pflbench.store.numbering import KEPT_IN
from pflbench.store.schema import STATUSES, copies

_BEYOND = 4096  # numbers after the last one that is known of: a page has fewer rows
_SMALLEST_PAGE = 512  # bytes
_NOT_NOW = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_BY_NUMBER = ("partition", "run", "reference_run", "measurement", "sweep", "artifact")
_JSON = {
    "run": ("spec", "environment"),
    "partition": ("spec", "classes", "train_counts", "test_counts"),
    "artifact": ("shape",),
    "measurement": ("setting", "ceilings", "arms", "environment"),
    "sweep": ("specs", "environment"),
}
_OF_ROUNDS = ("client_round", "series", "artifact")


@dataclass
class Saved:
    """By table the rows that are in the new file; lost, changed: what is not there as it was, a line each."""

    rows: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def repair(url: str, target: Path) -> tuple[Saved, list[str]]:
    """Saves what can be read into a new file, there whole or not at all; and what `check` still says of it.

    Raises UserError if there is such a file, it cannot be written, or nothing can be read.
    """
    source = sqlite_path(sa.make_url(url))
    if source is None:
        raise UserError("Only an SQLite file can be repaired.", "A server keeps its own: restore a backup of it.")
    if not source.is_file():
        raise UserError(f"There is no database at {source}.", ELSEWHERE)
    if target.exists() or not target.absolute().parent.is_dir():
        raise UserError(
            f"{target} is there already, or its folder is not.", "Name a new file with -o: a repair replaces nothing."
        )
    try:
        with aside_by_name(target) as new, friendly(url):
            told = save(source, new)
            problems = inspection.check(db.to_url(str(new)))
            journal.change(new, journal.ROLLBACK)  # in one file
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}.", "Name a file in a writable folder.") from None
    if not journal.network(target):
        journal.change(target, journal.WAL)
    return told, problems


def save(source: Path, target: Path) -> Saved:
    """Fills a new database at `target`. Raises UserError where not even the list of tables can be read."""
    told = Saved()
    with _opened(source, target) as old:
        revision = _revision(old, source)
        _make(target, revision)
        with closing(sqlite3.connect(target, isolation_level=None)) as new:
            for setting in ("foreign_keys=OFF", "ignore_check_constraints=ON", "synchronous=OFF"):
                new.execute(f"PRAGMA {setting}")
            new.execute("BEGIN")
            _Rescue(old, new, told).all()
            _derive(new, told)
            _numbers(old, new)
            new.execute("COMMIT")
    db.connect(db.to_url(str(target))).dispose()  # to the newest schema
    with closing(sqlite3.connect(target)) as new:
        told.rows = {table: _one(new, f'SELECT count(*) FROM "{table}"') for table in (*told.rows,)}
    return told


@contextmanager
def _opened(source: Path, target: Path) -> Iterator[sqlite3.Connection]:
    """The file as it is at one moment; where reading it takes writing, a copy of it beside the target."""
    source = source.resolve()  # where its journal lies
    torn = _torn(source)
    if not torn and not _left_in_a_transaction(source):
        with closing(_connected(source, "ro")) as old:
            yield old
        return
    with TemporaryDirectory(prefix=f".{target.name}", dir=target.absolute().parent) as folder:
        copy = Path(folder) / source.name
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{source}{suffix}", f"{copy}{suffix}")
        os.truncate(copy, copy.stat().st_size - torn)
        with closing(_connected(copy, "rw")) as old:
            yield old


def _torn(source: Path) -> int:
    """Bytes of a last page that was cut off: SQLite would read zeros behind them."""
    with source.open("rb") as file:
        page = int.from_bytes(file.read(18)[16:], "big")
    page = 65536 if page == 1 else page
    return 0 if page < _SMALLEST_PAGE else source.stat().st_size % page


def _left_in_a_transaction(source: Path) -> bool:
    """Whether a process that was killed has left its rollback journal: half of what it wrote is in the file."""
    try:
        _connected(source, "ro").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        return True
    return False


def _connected(source: Path, mode: str) -> sqlite3.Connection:
    """In a transaction that reads. Raises sqlite3.OperationalError where the file cannot be read now."""
    old = sqlite3.connect(f"{source.as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    old.text_factory = lambda data: data.decode(errors="replace")
    # The first lets a file be read that is shorter than it says, or whose schema is damaged in part.
    for statement in ("PRAGMA writable_schema=ON", "PRAGMA trusted_schema=OFF", "PRAGMA cell_size_check=ON", "BEGIN"):
        old.execute(statement)
    try:
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _NOT_NOW:
            old.close()
            raise
    except sqlite3.DatabaseError:  # damaged: told of where its tables are looked for
        pass
    return old


def _revision(old: sqlite3.Connection, source: Path) -> str:
    """Of the schema; where that cannot be read, the newest."""
    try:
        tables = {row[0] for row in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        hint = "The list of its tables, on its first pages, is damaged: go back to a backup."
        raise UserError(f"Nothing can be read of {source.name}: {error}.", hint) from None
    if not {"run", "round"} <= tables:
        raise UserError(f"{source} has no tables of runs that can be read.", "Nothing was written.")
    try:
        found = old.execute(f"SELECT version_num FROM {db.VERSION_TABLE}").fetchone()
    except sqlite3.DatabaseError:
        found = None
    return found[0] if found and found[0] in db.revisions() else db.head()


def _make(target: Path, revision: str) -> None:
    from alembic import command

    engine = db.open_engine(db.to_url(str(target)))
    try:
        with db.migrating(engine) as connection:
            command.upgrade(db.alembic_config(connection), revision)
    finally:
        engine.dispose()


class _Rescue:
    """Rows from the old file to the new one, table by table."""

    def __init__(self, old: sqlite3.Connection, new: sqlite3.Connection, told: Saved) -> None:
        self.old, self.new, self.told = old, new, told
        self.there = {row[0] for row in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def all(self) -> None:
        for table in _BY_NUMBER:
            if table in self.there:
                self._copy(table, self._by_number(table))
        runs = self.new.execute("SELECT id, rounds, clients FROM run ORDER BY id").fetchall()
        for table, last in (("round", None), ("client_round", "client"), ("series", "name")):
            self._copy(table, (row for run in runs for row in self._of_run(table, last, *run)))
        if "reference_round" in self.there:
            ids = [row[0] for row in self.new.execute("SELECT id FROM reference_run")]
            rows = (row for i in ids for row in self._where("reference_round", f"series {i}", reference_id=i))
            self._copy("reference_round", rows)

    def _copy(self, table: str, rows: Iterator[dict[str, Any]]) -> None:
        self.told.rows[table] = 0
        known = [row[1] for row in self.new.execute(f'PRAGMA table_info("{table}")')]
        for row in rows:
            wrong = next((column for column in _JSON.get(table, ()) if not _is_json(row.get(column))), None)
            if wrong == "environment" and table == "run":
                row["environment"] = "{}"
                self.told.changed.append(f"run {row['id']}: its record was no JSON, and is empty")
            elif wrong is not None:
                self.told.lost.append(f"{table} {row.get('id')}: {wrong} is no JSON")
                continue
            columns = [column for column in known if column in row]
            names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
            try:
                self.new.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [row[column] for column in columns])
            except (sqlite3.IntegrityError, sqlite3.DataError) as error:
                self.told.lost.append(f"{table} {tuple(row.values())[:3]}: {error}")

    def _rows(self, table: str, condition: str, *values: Any) -> Iterator[dict[str, Any]]:
        found = self.old.execute(f'SELECT * FROM "{table}" WHERE {condition}', values)
        names = [column[0] for column in found.description]
        for row in found:
            yield dict(zip(names, row, strict=True))

    def _by_number(self, table: str) -> Iterator[dict[str, Any]]:
        """Of the numbers from the first to the last that is known of."""
        yield from self._between(table, 1, self._last(table))

    def _last(self, table: str) -> int:
        known = [0]
        for query in (
            f'SELECT max(id) FROM "{table}"',
            f"SELECT max(seq) FROM {KEPT_IN} WHERE name = '{table}'",
            f'SELECT id FROM "{table}" ORDER BY id',
        ):
            try:
                known += [row[0] for row in self.old.execute(query) if isinstance(row[0], int)][-1:]
            except sqlite3.DatabaseError:
                known.append(self._reached(table) + _BEYOND)
        return min(max(known), 2**40)

    def _reached(self, table: str) -> int:
        """The last number before the first page that cannot be read."""
        last = 0
        try:
            for (number,) in self.old.execute(f'SELECT id FROM "{table}" ORDER BY id'):
                last = number
        except sqlite3.DatabaseError:
            pass
        return last

    def _between(self, table: str, first: int, last: int) -> Iterator[dict[str, Any]]:
        """Halves what cannot be read until it can, or is one number."""
        try:
            for row in self._rows(table, "id BETWEEN ? AND ? ORDER BY id", first, last):
                first = row["id"] + 1
                yield row
            return
        except sqlite3.DatabaseError:
            pass
        if first >= last:
            self.told.lost.append(f"{table} {last}: cannot be read, if it was there")
            return
        middle = (first + last) // 2
        yield from self._between(table, first, middle)
        yield from self._between(table, middle + 1, last)

    def _of_run(self, table: str, last: str | None, run: int, rounds: int, clients: int) -> Iterator[dict[str, Any]]:
        """All rows of a run at once; where that fails those of each round; and where that fails each alone."""
        try:
            yield from list(self._rows(table, "run_id = ?", run))
            return
        except sqlite3.DatabaseError:
            pass
        if last == "name":
            yield from self._where(table, f"run {run}: series", run_id=run)
            return
        for t in range(rounds + 1):
            try:
                yield from list(self._rows(table, "run_id = ? AND round = ?", run, t))
                continue
            except sqlite3.DatabaseError:
                if last is None:
                    self.told.lost.append(f"run {run}, round {t}: its row cannot be read")
                    continue
            for client in range(clients):
                yield from self._where(table, f"run {run}, round {t}, client {client}", run_id=run, round=t, client=client)

    def _where(self, table: str, name: str, **key: int) -> Iterator[dict[str, Any]]:
        """As far as it can be read."""
        try:
            yield from self._rows(table, " AND ".join(f"{column} = ?" for column in key), *key.values())
        except sqlite3.DatabaseError:
            self.told.lost.append(f"{name}: rows of {table} cannot be read")


# -- what follows from other rows ---------------------------------------------------------------------------------------


def _derive(new: sqlite3.Connection, told: Saved) -> None:
    _specifications(new, told)
    for table in _OF_ROUNDS:
        there = f"SELECT 1 FROM round r WHERE r.run_id = {table}.run_id AND r.round = {table}.round"
        left = new.execute(f"DELETE FROM {table} WHERE NOT EXISTS ({there})").rowcount
        if left:
            told.lost.append(f"{table}: {left} rows whose round is not there")
    for number, there in new.execute(
        "SELECT id, partition_id FROM run WHERE partition_id IS NOT NULL AND partition_id NOT IN (SELECT id FROM partition)"
    ).fetchall():
        new.execute("UPDATE run SET partition_id = NULL WHERE id = ?", (number,))
        told.changed.append(f"run {number}: its partition {there} is not there")
    for number, rounds, count in new.execute(
        "SELECT id, rounds, (SELECT count(*) FROM round WHERE run_id = id AND round BETWEEN 0 AND rounds) AS n FROM run "
        "WHERE status = 'finished' AND n != rounds + 1"
    ).fetchall():
        new.execute("UPDATE run SET status = 'interrupted', finished_at = NULL WHERE id = ?", (number,))
        told.changed.append(f"run {number}: interrupted, no longer finished: {count} of {rounds + 1} rounds")


def _specifications(new: sqlite3.Connection, told: Saved) -> None:
    """Of the key and the columns that are copies, those that contradict the specification, if the others bear it out."""
    cursor = new.execute("SELECT * FROM run ORDER BY id")
    names = [column[0] for column in cursor.description]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        change: dict[str, Any] = {}
        try:
            plain = json.loads(row["spec"])
            expected = copies(RunSpec.model_validate(plain))
            keys = {"key": key_of(plain), "protocol": protocol_of(plain)}
        except (ValidationError, AttributeError, TypeError, ValueError):
            expected, keys = {}, {}
        wrong, wrong_keys = ({k: v for k, v in of.items() if row[k] != v} for of in (expected, keys))
        if not (wrong and wrong_keys):
            change |= wrong | wrong_keys
        if row["status"] not in STATUSES:
            change["status"] = "interrupted"
        for column, value in change.items():
            try:
                new.execute(f'UPDATE run SET "{column}" = ? WHERE id = ?', (value, row["id"]))
                told.changed.append(f"run {row['id']}: {column} was {row[column]!r}, is {value!r}")
            except sqlite3.IntegrityError:
                told.changed.append(f"run {row['id']}: {column} stays {row[column]!r}: another run has {value!r}")


def _numbers(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Those of removed runs are not given out again."""
    try:
        last = old.execute(f"SELECT max(seq) FROM {KEPT_IN} WHERE name = 'run' AND typeof(seq) = 'integer'").fetchone()[0]
        new.execute(f"UPDATE {KEPT_IN} SET seq = max(seq, ?) WHERE name = 'run'", (last or 0,))
    except sqlite3.DatabaseError:
        pass  # an older schema, or a page that cannot be read


def _is_json(text: object) -> bool:
    try:
        json.loads(text)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _one(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
