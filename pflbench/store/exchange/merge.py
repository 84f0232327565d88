"""`import`: copies runs of another pflbench database into this one, by their keys. The other database is only read.

Two runs of a key should have the same numbers. Compared are those that the specification determines: accuracies, losses and
traffic, of every round and client. Times, memory and stored arrays may differ between machines.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, func, insert, inspect, make_url, select

from pflbench.errors import UserError
from pflbench.spec import RunSpec
from pflbench.store import partitions, rules, sweeps
from pflbench.store.database import as_it_is, connect_read_only, head, inserted, reading, retry_insert, to_url, upgrade, writing
from pflbench.store.exchange.backup import backup
from pflbench.store.exchange.copy import chunks
from pflbench.store.failures import friendly, sqlite_path
from pflbench.store.locks import UNDER_WAY
from pflbench.store.paths import in_spec, kept_or_named, moved
from pflbench.store.runs import ALL, Run, attempts, stored
from pflbench.store.schema import (
    ArtifactRow,
    Base,
    ClientRoundRow,
    NewClientRow,
    PartitionRow,
    RoundRow,
    RunRow,
    SeriesRow,
    SweepRow,
)
from pflbench.store.studies import StoredStudy, of_sweep

# new: copied. attempt: copied as the next attempt of a key that this database has. same: this database has the run.
# behind: not copied; both runs are unfinished, and only the one here has a checkpoint, though the other got further.
# conflict: not copied; the numbers differ.
What = Literal["new", "attempt", "same", "behind", "conflict"]

_NOTHING = "Nothing of it was taken."
_MAGIC = b"SQLite format 3\0"
_COMPARED: tuple[type[Base], ...] = (RoundRow, ClientRoundRow, NewClientRow, SeriesRow)
_COPIED: tuple[type[Base], ...] = (*_COMPARED, ArtifactRow)
_MAY_DIFFER = {"run_id", "flops", "seconds_receive", "seconds_update", "seconds_evaluate", "peak_memory"}
_NAMED = {"client": " of client {}", "epochs": " after {} epochs", "name": " of {}"}  # the keys of a row beside its round


@dataclass(frozen=True)
class Difference:
    """Where two runs of a key first differ. `what`: "accuracy", "correct of client 3". None: that run has no such row."""

    round: int
    what: str
    here: float | int | None
    there: float | int | None


@dataclass(frozen=True)
class Outcome:
    """What was done with a run. compared: the run of this database that decided it. here: the number of the copy."""

    run: Run
    what: What
    compared: int | None = None
    difference: Difference | None = None
    here: int | None = None

    @property
    def last(self) -> int:
        """The newest round of the run, -1 without one."""
        return _last(self.run)


@dataclass(frozen=True)
class Other:
    """Another database, opened for reading, with its runs. url: of the original, also if a copy of it is read."""

    engine: Engine
    name: str
    url: URL
    runs: tuple[Run, ...]


@contextmanager
def opened(path: Path, engine: Engine | None = None) -> Iterator[Other]:
    """The database at `path`; one with an older schema is read from a copy that was upgraded.

    Raises:
        UserError: no pflbench database, a newer schema, damaged, the database of `engine` itself, or an invalid row.
    """
    _require_database(path, None if engine is None else sqlite_path(engine.url))
    url = original = to_url(str(path))
    with TemporaryDirectory() as folder:
        with as_it_is(url, read_only=True) as (connection, schema):
            _require_no_views(connection, path.name)
        if schema != head():
            backup(url, copy := Path(folder) / path.name)
            upgrade(url := to_url(str(copy)))
        other = connect_read_only(url)
        try:
            with reading(other) as connection:
                _require_columns(connection, path.name)
                _require_rules(connection, path)
            yield Other(other, path.name, make_url(original), tuple(stored(other, ALL)))
        finally:
            other.dispose()


def runs(engine: Engine, other: Other, *, on_conflict: str = "skip", dry_run: bool = False) -> Iterator[Outcome]:
    """Copies the other database's runs, one transaction each. Runs of this database stay as they are.

    on_conflict="attempt": a run with other numbers is copied as the next attempt of its key. dry_run: nothing is copied.
    """
    copied: set[int] = set()  # runs are compared with those that were here before the import
    for run in other.runs:
        outcome = retry_insert(partial(_import, engine, other, run, copied, on_conflict, dry_run))
        if outcome.here is not None:
            copied.add(outcome.here)
        yield outcome


def _import(engine: Engine, other: Other, run: Run, copied: Collection[int], on_conflict: str, dry_run: bool) -> Outcome:
    """Compares a run and copies it if needed, in one transaction: no other process adds the same run meanwhile."""
    with reading(other.engine) as foreign, reading(engine) if dry_run else writing(engine) as own:
        present = [mine for mine in attempts(engine, [run.key]).get(run.key, []) if mine.id not in copied]
        outcome = _decide(own, foreign, run, present)
        if outcome.what == "conflict" and on_conflict == "attempt":
            outcome = replace(outcome, what="attempt")
        if outcome.what in ("new", "attempt") and not dry_run:
            outcome = replace(outcome, here=_copy(own, foreign, other, run))
        return outcome


def studies(engine: Engine, other: Other, *, dry_run: bool = False) -> list[str]:
    """Copies the other database's studies: their trials are no results here either. Returns the names they get here.

    Of a study that both have, the one with more runs stays. A name that is taken here gets a number.
    """
    here = {sweep.name: of_sweep(sweep.name, sweep.environment) for sweep in sweeps.listed(engine)}
    with reading(other.engine) as connection:
        query = select(SweepRow.name, SweepRow.specs, SweepRow.environment).order_by(SweepRow.id)
        rows = [dict(row) for row in connection.execute(query).mappings()]
    copied = []
    for row in rows:
        study = of_sweep(row["name"], row["environment"])
        if study is None:
            continue
        name = next(name for name in _numbered(study.name) if name not in here or _same(study, here[name]))
        if (known := here.get(name)) and len(known.keys) >= len(study.keys):
            continue
        copied.append(name)
        if not dry_run:
            found = sweeps.located(row, lambda path: moved(path, other.url, engine.url, kept_or_named))
            sweeps.save(engine, name, [RunSpec.model_validate(spec) for spec in found["specs"]], found["environment"])
    return copied


def _numbered(name: str) -> Iterator[str]:
    """The name, then with 2, 3, ... behind it; names have at most 64 letters."""
    yield name
    yield from (f"{name[:58]}-{number}" for number in count(2))


def _same(study: StoredStudy, known: StoredStudy | None) -> bool:
    """Whether `known` is the same study, perhaps with more or fewer of its trials."""
    return known is not None and known.definition == study.definition


def is_sqlite(path: Path) -> bool:
    """Whether the file begins as SQLite's do."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _require_database(path: Path, here: Path | None) -> None:
    if not is_sqlite(path):
        raise UserError(
            f"{path} is neither a pflbench database nor an HDF5 file.", "`pflbench import` takes these two kinds of file."
        )
    if here is not None and here.exists() and here.samefile(path):
        raise UserError(f"{path} is the database to import into.", "--db names the one to import into; PATH the other.")


def _require_no_views(connection: Connection, name: str) -> None:
    """Raises UserError if there are views or triggers: SQLite executes their code when a table is read or changed."""
    query = "SELECT name FROM sqlite_master WHERE type != 'index' AND sql NOT LIKE 'CREATE TABLE%'"  # as SQLite writes it down
    if (found := connection.exec_driver_sql(query).scalar()) is not None:
        raise UserError(
            f"{name}: '{found}' is a view, a virtual table or a trigger.", f"{_NOTHING} Only tables are: drop it in a copy."
        )


def _require_columns(connection: Connection, name: str) -> None:
    found = inspect(connection).get_multi_columns()
    for table in Base.metadata.sorted_tables:
        present = {column["name"] for column in found.get((None, table.name), ())}
        if missing := [column.name for column in table.columns if column.name not in present]:
            raise UserError(f"{name}, table {table.name}: no column '{missing[0]}'.", _NOTHING)


def _require_rules(connection: Connection, path: Path) -> None:
    """Raises UserError for the first problem of the rows that `db check` would report."""
    for problem in rules.problems(connection):
        more = f"`pflbench db check --db {path}` names all; `pflbench runs rm RUN --db COPY` leaves a run out, in a copy."
        raise UserError(f"{path.name}: {problem}.", f"{_NOTHING} {more}")


def _decide(own: Connection, foreign: Connection, run: Run, present: Sequence[Run]) -> Outcome:
    """What to do with a run. present: the attempts of its key in this database, oldest first."""
    if not present:
        return Outcome(run, "new")
    rivals = [mine for mine in present if mine.ended or not run.ended]
    if not rivals:
        return Outcome(run, "attempt")
    found = [(mine, _difference(own, foreign, mine, run)) for mine in rivals]
    equal = [mine for mine, difference in found if difference is None]
    if not equal:
        newest, difference = found[-1]
        return Outcome(run, "conflict", newest.id, difference)
    furthest = max(equal, key=lambda mine: (mine.ended, _last(mine)))
    behind = not furthest.ended and _last(furthest) < _last(run)
    return Outcome(run, "behind" if behind else "same", furthest.id)


def _difference(own: Connection, foreign: Connection, mine: Run, run: Run) -> Difference | None:
    """The first difference between two runs: over all rounds if both have ended, else over the rounds that both have."""
    until = (max if mine.ended and run.ended else min)(_last(mine), _last(run))
    return first_difference(own, foreign, mine.id, run.id, (0, until))


def first_difference(
    own: Connection, foreign: Connection, mine: int, theirs: int, rounds: tuple[int, int], tolerance: float = 0.0
) -> Difference | None:
    """The first difference between two runs in these rounds, the first and the last of them.

    tolerance: numbers are equal if they differ by no more than this, or by no more than this share of the larger one.
    """
    tables = (model.__table__ for model in _COMPARED)
    found = (_first_difference(table, own, foreign, mine, theirs, rounds, tolerance) for table in tables)

    def order(one: Difference) -> tuple[int, bool]:
        """Another result of a client says more than that of its round, unless rows are missing."""
        return one.round, " of client " not in one.what or None in (one.here, one.there)

    return min(filter(None, found), key=order, default=None)


def _first_difference(
    table: Any, own: Connection, foreign: Connection, mine: int, theirs: int, rounds: tuple[int, int], tolerance: float
) -> Difference | None:
    beside = [column.name for column in table.primary_key if column.name not in ("run_id", "round")]
    keys = ["round", *beside]
    values = [column.name for column in table.columns if column.name not in (*keys, *_MAY_DIFFER)]
    query = select(*(table.c[name] for name in (*keys, *values))).where(table.c.round.between(*rounds))
    ours, others = (
        {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in c.execute(query.where(table.c.run_id == run))}
        for c, run in ((own, mine), (foreign, theirs))
    )

    def equal(one: Any, other: Any) -> bool:
        if tolerance and one is not None and other is not None:
            return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        return bool(one == other)

    def differs(key: tuple[Any, ...]) -> bool:
        here, there = ours.get(key), others.get(key)
        return here is None or there is None or not all(map(equal, here, there))

    first = min(filter(differs, ours.keys() | others.keys()), default=None)
    if first is None:
        return None
    both = zip(values, *(rows.get(first, (None,) * len(values)) for rows in (ours, others)), strict=True)
    name, here, there = next((one for one in both if not equal(*one[1:])), (values[0], None, None))
    of = "".join(_NAMED[key].format(k) for key, k in zip(beside, first[1:], strict=True))
    return Difference(first[0], name.replace("_", " ") + of, here, there)


def _copy(own: Connection, foreign: Connection, other: Other, run: Run) -> int:
    """Copies the run as the next attempt of its key; returns its new number. One that was running is interrupted here."""
    row = _row(foreign, RunRow, run.id)
    partition = row["partition_id"]
    attempt = select(func.coalesce(func.max(RunRow.attempt), 0) + 1).where(RunRow.key == run.key).scalar_subquery()
    row |= {
        "attempt": attempt,
        "partition_id": None if partition is None else partitions.insert_once(own, _row(foreign, PartitionRow, partition)),
        "spec": in_spec(row["spec"], lambda path: moved(path, other.url, own.engine.url, kept_or_named)),
        "environment": {**row["environment"], "imported_from": f"{other.name}, run {run.id}"},
        "status": "interrupted" if run.status in UNDER_WAY else run.status,
    }
    copied = inserted(own, insert(RunRow).values(row))
    for model in _COPIED:
        table: Any = model.__table__
        columns = [column for column in table.columns if column.name not in ("id", "run_id")]
        # Up to the last round that was compared: a running run may have more by now.
        query = select(*columns).where(table.c.run_id == run.id, table.c.round <= _last(run))
        for rows in chunks(foreign, query):
            own.execute(insert(table), [{**row, "run_id": copied} for row in rows])
    return copied


def _last(run: Run) -> int:
    """The newest round of a run, -1 without one."""
    return -1 if run.last_round is None else run.last_round


def _row(foreign: Connection, model: type[Base], number: int) -> dict[str, Any]:
    """The row with this id, without the id."""
    columns = [column for column in model.__table__.columns if column.name != "id"]
    with friendly(foreign.engine.url):
        return dict(foreign.execute(select(*columns).where(model.__table__.c.id == number)).mappings().one())
