"""Runs of another pflbench database, taken into this one by their keys. The other database is only read.

Two runs of a key should have the same numbers. Compared is what the specification decides: accuracies, losses and what
was sent, of every round and client. Times, memory and observed arrays may differ from one machine to the next.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Table, func, insert, select

from pflbench.errors import UserError
from pflbench.store import db
from pflbench.store.failures import friendly, sqlite_path
from pflbench.store.read import reading
from pflbench.store.schema import Artifact, Base, ClientRound, Partition, Round, Run, Series

ON_CONFLICT = ("skip", "attempt")
# new: copied. attempt: copied beside an earlier attempt here. same: here already. behind: an unfinished run that got further
# than the unfinished one here, which alone has a checkpoint. conflict: other numbers than here; not copied.
What = Literal["new", "attempt", "same", "behind", "conflict"]

_ENDED = ("finished", "diverged")
_MAGIC = b"SQLite format 3\0"
_ROWS = 10_000
# Rows at a time: an array can have many megabytes.
_COPIED = {Round: _ROWS, ClientRound: _ROWS, Series: _ROWS, Artifact: 1}
_COMPARED = (Round, ClientRound, Series)
_MAY_DIFFER = {"run_id", "seconds_receive", "seconds_update", "seconds_evaluate", "peak_memory"}


@dataclass(frozen=True)
class Stored:
    """A run of either database, as it is listed. `last`: its newest round, -1 without one."""

    id: int
    key: str
    status: str
    method: str
    dataset: str
    partition: str
    seed: int
    last: int

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


@dataclass(frozen=True)
class Difference:
    """Where two runs of one key first differ; None where one has no such row. `what`: "accuracy", "correct of client 3"."""

    round: int
    what: str
    here: float | int | None
    there: float | int | None


@dataclass(frozen=True)
class Outcome:
    """What became of a run. compared: the run here that decided it. here: the number of its copy, if there is one."""

    run: Stored
    what: What
    compared: int | None = None
    difference: Difference | None = None
    here: int | None = None


@dataclass(frozen=True)
class Other:
    """Another database, opened for reading, with its runs by number."""

    engine: Engine
    name: str
    runs: tuple[Stored, ...]


@contextmanager
def opened(path: Path, engine: Engine) -> Iterator[Other]:
    """The database at `path`; one with an older schema is read from a copy that was upgraded.

    Raises:
        UserError: no pflbench database, a newer schema, damaged, or the database of `engine` itself.
    """
    _require_database(path, sqlite_path(engine.url))
    url = db.to_url(str(path))
    with TemporaryDirectory() as folder:
        if _is_old(url):
            url = _upgraded(path, Path(folder) / path.name)
        other = db.connect_read_only(url)
        try:
            yield Other(other, path.name, tuple(_attempts(other)))
        finally:
            other.dispose()


def runs(engine: Engine, other: Other, *, on_conflict: str = "skip", dry_run: bool = False) -> Iterator[Outcome]:
    """Takes in the other's runs, one transaction each; what is here already stays as it is.

    on_conflict="attempt" copies a run with other numbers, too, as the next attempt of its key. dry_run copies nothing.
    """
    before: dict[str, list[Stored]] = {}
    for run in other.runs:
        if run.key not in before:
            before[run.key] = list(_attempts(engine, run.key))
        outcome = _decide(engine, other, run, before[run.key])
        if outcome.what == "conflict" and on_conflict == "attempt":
            outcome = replace(outcome, what="attempt")
        if outcome.what in ("new", "attempt") and not dry_run:
            outcome = replace(outcome, here=_copy(engine, other, run))
        yield outcome


def _require_database(path: Path, here: Path | None) -> None:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UserError(
                f"{path} is neither a pflbench database nor an HDF5 file.", "`pflbench import` takes these two kinds of file."
            )
    if here is not None and here.exists() and here.samefile(path):
        raise UserError(f"{path} is the database to import into.", "--db names the one to import into; PATH the other.")


def _is_old(url: str) -> bool:
    """Whether the database needs an upgrade; an empty, newer or another program's database is a UserError."""
    engine = db.open_engine(url, read_only=True)
    try:
        with friendly(url), engine.connect() as connection:
            found = db.revision(connection)
    finally:
        engine.dispose()
    if found is None:
        raise UserError(f"{sqlite_path(engine.url)} is an empty database.", "There is nothing to import.")
    return found != db.head()


def _upgraded(path: Path, copy: Path) -> str:
    """The URL of a copy with the newest schema."""
    url = db.to_url(str(copy))
    with friendly(db.to_url(str(path))):
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        target = sqlite3.connect(copy)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()
    db.upgrade(url)
    return url


def _attempts(engine: Engine, key: str | None = None) -> Iterator[Stored]:
    """All runs by number, or those of a key by attempt."""
    last = select(func.max(Round.round)).where(Round.run_id == Run.id).scalar_subquery()
    columns = (Run.id, Run.key, Run.status, Run.method, Run.dataset, Run.partition_label, Run.seed)
    query = select(*columns, func.coalesce(last, -1))
    query = query.order_by(Run.id) if key is None else query.where(Run.key == key).order_by(Run.attempt)
    with reading(engine) as c:
        yield from (Stored(*row) for row in c.execute(query).all())


def _decide(engine: Engine, other: Other, run: Stored, present: Sequence[Stored]) -> Outcome:
    """What is to become of a run, given the attempts of its key that were here before, oldest first."""
    if not present:
        return Outcome(run, "new")
    rivals = [mine for mine in present if mine.ended or not run.ended]
    if not rivals:
        return Outcome(run, "attempt")
    with reading(engine) as here, reading(other.engine) as there:
        found = {mine: _difference(here, there, mine, run) for mine in rivals}
    equal = [mine for mine, difference in found.items() if difference is None]
    if not equal:
        return Outcome(run, "conflict", rivals[-1].id, found[rivals[-1]])
    furthest = max(equal, key=lambda mine: (mine.ended, mine.last))
    behind = not furthest.ended and furthest.last < run.last
    return Outcome(run, "behind" if behind else "same", furthest.id)


def _difference(here: Connection, there: Connection, mine: Stored, run: Stored) -> Difference | None:
    """Of runs that have both ended, over all rounds; else over those that both have."""
    until = max(mine.last, run.last) if mine.ended and run.ended else min(mine.last, run.last)
    found = [_first_difference(model.__table__, here, there, mine.id, run.id, until) for model in _COMPARED]  # type: ignore[arg-type]
    return min((one for one in found if one is not None), key=lambda one: one.round, default=None)


def _first_difference(table: Table, here: Connection, there: Connection, mine: int, theirs: int, until: int) -> Difference | None:
    more = [column.name for column in table.primary_key if column.name not in ("run_id", "round")]  # client, or name of a series
    keys = ["round", *more]
    values = [column.name for column in table.columns if column.name not in (*keys, *_MAY_DIFFER)]
    query = select(*(table.c[name] for name in (*keys, *values))).order_by(*(table.c[name] for name in keys))
    rows = [c.execute(query.where(table.c.run_id == id, table.c.round <= until)) for c, id in ((here, mine), (there, theirs))]
    for pair in zip_longest(*rows):
        a, b = (None if row is None else tuple(row) for row in pair)
        if a != b:
            return _described(a, b, more, values)
    return None


def _described(a: tuple[Any, ...] | None, b: tuple[Any, ...] | None, more: Sequence[str], values: Sequence[str]) -> Difference:
    """Of two rows that differ; where their keys do, the later one is compared with nothing."""
    n = 1 + len(more)
    first = min(row[:n] for row in (a, b) if row is not None)
    ours, theirs = (row[n:] if row is not None and row[:n] == first else (None,) * len(values) for row in (a, b))
    at = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), 0)
    of = "".join(f" of client {k}" if name == "client" else f" of {k}" for name, k in zip(more, first[1:], strict=True))
    return Difference(first[0], values[at].replace("_", " ") + of, ours[at], theirs[at])


def _copy(engine: Engine, other: Other, run: Stored) -> int:
    """The run with all its rows as the next attempt of its key; returns its new number. One that was running is not, here."""
    row = _row(other, Run, run.id)
    partition = None if row["partition_id"] is None else _row(other, Partition, row["partition_id"])
    attempt = select(func.coalesce(func.max(Run.attempt), 0) + 1).where(Run.key == run.key).scalar_subquery()
    with db.writing(engine) as here:
        row |= {
            "attempt": attempt,
            "partition_id": None if partition is None else _kept_partition(here, partition),
            "environment": {**row["environment"], "imported_from": f"{other.name}, run {run.id}"},
            "status": "interrupted" if run.status in ("queued", "running") else run.status,
        }
        copied = _insert(here, Run, row)
        for model, at_once in _COPIED.items():
            _copy_rows(here, other, model, run.id, copied, at_once)
    return copied


def _row(other: Other, model: type[Base], number: int) -> dict[str, Any]:
    """A row without its number."""
    columns = [column for column in model.__table__.columns if column.name != "id"]
    with reading(other.engine) as there:
        return dict(there.execute(select(*columns).where(model.__table__.c.id == number)).mappings().one())


def _kept_partition(here: Connection, row: dict[str, Any]) -> int:
    """The number here of a partition, which is stored once."""
    known = here.scalar(select(Partition.id).where(Partition.hash == row["hash"]))
    return known if known is not None else _insert(here, Partition, row)


def _copy_rows(here: Connection, other: Other, model: type[Base], run: int, copied: int, at_once: int) -> None:
    columns = [column for column in model.__table__.columns if column.name not in ("id", "run_id")]
    statement = insert(model.__table__)  # type: ignore[arg-type]
    query = select(*columns).where(model.__table__.c.run_id == run)
    for chunk in _chunks(other, query, at_once):
        here.execute(statement, [{**row, "run_id": copied} for row in chunk])


def _chunks(other: Other, query: Any, at_once: int) -> Iterator[Sequence[Any]]:
    """A connection of its own: what fails in here is the other database, and is called so."""
    with reading(other.engine) as there:
        yield from there.execute(query).mappings().partitions(at_once)


def _insert(here: Connection, model: type[Base], row: dict[str, Any]) -> int:
    key = here.execute(insert(model).values(row)).inserted_primary_key
    assert key is not None
    return int(key[0])
