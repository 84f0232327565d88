"""Rules for the rows of a database, for `db check` and `import`. A problem is one line that names run and round.

SQLite stores any value in any column, and a database may come from anywhere. So values are checked first; only if all are valid,
the rules compute with them. The hash of a partition is not checked: that needs the dataset's labels.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy import JSON, CheckConstraint, Column, Connection, Double, Integer, LargeBinary, Table, and_, func, select

from pflbench.spec import from_stored
from pflbench.store.arrays import unpack_array
from pflbench.store.partitions import unpack_indices
from pflbench.store.schema import (
    ArtifactRow,
    Base,
    ClientRoundRow,
    PartitionRow,
    ReferenceRoundRow,
    RoundRow,
    RunRow,
    SeriesRow,
    copies,
    is_environment,
)

Found = Iterator[str]
_SHOWN = 40  # characters of a value
_FIRST = 10  # problems of a rule
_NEAR = 1e-6  # sums of floats in another order
_SENT = ("params_up", "params_down", "scalars_up", "scalars_down")  # as the columns of the array `traffic`
_NO_JSON = (ValueError, TypeError, AttributeError, RecursionError)


def problems(connection: Connection) -> Found:
    """The first problems that each rule finds, and a line if there are more."""
    readable = True
    for line in _first(_values(connection)):
        readable = False
        yield line
    for rule in _RULES if readable else ():
        yield from _first(rule(connection))


def _first(found: Found) -> Found:
    lines = ["".join(c if c.isprintable() else "?" for c in line) for line in islice(found, _FIRST + 1)]
    yield from lines[:_FIRST]
    if len(lines) > _FIRST:
        yield f"and more that are like this: {lines[_FIRST]}"


# -- values -------------------------------------------------------------------------------------------------------------

_TYPE = """CASE typeof("{0}") WHEN 'text' THEN 'a text' WHEN 'blob' THEN 'binary data' ELSE coalesce("{0}", 'missing') END"""
_VALUE = 'CAST("{0}" AS TEXT)'


class _Condition(NamedTuple):
    """A condition on a column's values that are not null: in SQL, in words, and the SQL by which a wrong value is shown."""

    column: str
    must: str
    expected: str
    shown: str = _VALUE


def _values(connection: Connection) -> Found:
    """Each value has its column's type and fulfils the schema's checks. Numbers are finite, integers at least 0."""
    is_sqlite = connection.dialect.name == "sqlite"  # a server enforces the types
    for table in Base.metadata.sorted_tables:
        conditions = [_typed(column) for column in table.columns] if is_sqlite else []
        conditions += [*_checks(table), *filter(None, map(_in_range, table.columns))]
        if table is ReferenceRoundRow.__table__:
            conditions += [_Condition(x, f"{x} BETWEEN 0 AND 1", "a number from 0 to 1") for x in ("accuracy", "auc")]
        yield from _broken(connection, table, conditions)


def _typed(column: Column[Any]) -> _Condition:
    if isinstance(column.type, JSON):
        types, words = "'text'", "JSON"
    elif isinstance(column.type, LargeBinary):
        types, words = "'blob'", "binary data"
    elif isinstance(column.type, Double):
        types, words = "'integer', 'real'", "a number"
    elif isinstance(column.type, Integer):
        types, words = "'integer'", "a whole number"
    else:
        types, words = "'text'", "a text"
    null = ", 'null'" if column.nullable else ""
    return _Condition(column.name, f'typeof("{column.name}") IN ({types}{null})', words, _TYPE)


def _checks(table: Table) -> list[_Condition]:
    """The checks of the schema, which a file from elsewhere may lack."""
    checks = {str(check.name): str(check.sqltext) for check in table.constraints if isinstance(check, CheckConstraint)}
    return [_Condition(name.removeprefix(f"ck_{table.name}_"), text, text) for name, text in sorted(checks.items())]


def _in_range(column: Column[Any]) -> _Condition | None:
    if isinstance(column.type, Double):
        return _Condition(column.name, f'abs("{column.name}") <= 1.7976931348623157e308', "a finite number")
    if isinstance(column.type, Integer):
        return _Condition(column.name, f'"{column.name}" >= 0', "at least 0")
    return None


def _broken(connection: Connection, table: Table, conditions: list[_Condition]) -> Found:
    """The rows that break a condition."""
    keys = ["run_id", "round", "name"] if table is ArtifactRow.__table__ else [column.name for column in table.primary_key]
    which = " ".join(f"WHEN NOT ({c.must}) THEN {i}" for i, c in enumerate(conditions))
    shown = " ".join(f"WHEN NOT ({c.must}) THEN substr({c.shown.format(c.column)}, 1, {_SHOWN})" for c in conditions)
    wrong = " OR ".join(f"NOT ({c.must})" for c in conditions)
    query = f'SELECT {", ".join(keys)}, CASE {which} END, CASE {shown} END FROM "{table.name}" WHERE {wrong}'
    words = {"id": table.name, "run_id": "run", "reference_id": "reference_run"}
    words["name"] = "array" if table is ArtifactRow.__table__ else table.name
    for *row, i, value in connection.exec_driver_sql(query):
        where = ", ".join(f"{words.get(key, key)} {of}" for key, of in zip(keys, row, strict=True))
        yield f"{where}: {conditions[i].column} is {value}; expected {conditions[i].expected}"


def _check_references(connection: Connection) -> Found:
    """Foreign keys refer to existing rows. A server enforces that."""
    if connection.dialect.name == "sqlite":
        lost = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
        yield from (f"{n} rows of {table} belong to no {parent}" for (table, parent), n in lost.items())


# -- runs and partitions ------------------------------------------------------------------------------------------------


def _check_runs(connection: Connection) -> Found:
    """Keys and copied columns are those of the specification; specification and environment can be read."""
    names = ("id", "key", "protocol", "spec", "environment", *_COPIES)
    for number, key, protocol, text, record, *copied in connection.execute(
        _with_json_as_text(RunRow, *names).order_by(RunRow.id)
    ):
        if not is_environment(_json_or_none(record)):
            yield f"run {number}: its environment is invalid"
        spec = from_stored(_json_or_none(text))
        if spec is None:
            yield f"run {number}: its specification is invalid"
            continue
        if (key, protocol) != (spec.key, spec.protocol):
            yield f"run {number}: its key {key} or protocol {protocol} is not that of its specification"
        expected = copies(spec)
        for name, value in zip(_COPIES, copied, strict=True):
            if value != expected[name]:
                yield f"run {number}: {name} is {value}, and {expected[name]} in its specification"


def _json_or_none(text: str) -> Any:
    """Infinity and NaN are no JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


def _check_partitions(connection: Connection) -> Found:
    """Counts are of each client and class; index lists have as many samples; runs have as many clients as their partition."""
    names = ("id", "hash", "clients", "indices", "classes", "train_counts", "test_counts")
    for number, digest, clients, packed, *texts in connection.execute(
        _with_json_as_text(PartitionRow, *names).order_by(PartitionRow.id)
    ):
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            yield f"partition {number}: its hash is not 64 hexadecimal digits"
        try:
            classes, *sides = map(json.loads, texts)
            train, test = (np.array(side, dtype=np.int64).reshape(clients, len(classes)).sum(axis=1) for side in sides)
            indices = unpack_indices(packed) if packed is not None else {}
        except Exception:  # a damaged zip may raise anything
            yield f"partition {number}: its classes, counts or indices cannot be read"
            continue
        counts = {f"{side}_{i}": n for side, of in (("train", train), ("test", test)) for i, n in enumerate(of.tolist())}
        for name in counts if indices else ():
            if len(indices.get(name, ())) != counts[name]:
                yield f"partition {number}: the list {name} has not the {counts[name]} samples of its counts"
    query = select(RunRow.id, RunRow.clients, PartitionRow.clients).join(PartitionRow, PartitionRow.id == RunRow.partition_id)
    for number, wanted, clients in connection.execute(query.where(RunRow.clients != PartitionRow.clients).order_by(RunRow.id)):
        yield f"run {number}: it has {wanted} clients, its partition {clients}"


# -- rounds -------------------------------------------------------------------------------------------------------------


def _check_rounds(connection: Connection) -> Found:
    """Rounds count from 0 without a gap, and a finished run has all. No more clients take part than the run has."""
    count, last = func.count(RoundRow.round), func.coalesce(func.max(RoundRow.round), -1)
    query = select(RunRow.id, RunRow.status, RunRow.rounds, count, last).join(
        RoundRow, RoundRow.run_id == RunRow.id, isouter=True
    )
    for number, status, rounds, found, newest in connection.execute(query.group_by(RunRow.id).order_by(RunRow.id)).all():
        until = rounds if status == "finished" else newest
        if newest > rounds:
            yield f"run {number}, round {newest}: the run has {rounds} rounds"
        elif found != until + 1:
            rows = select(RoundRow.round).where(RoundRow.run_id == number).order_by(RoundRow.round)
            gap = next((t for t, stored in enumerate(connection.scalars(rows)) if t != stored), found)
            yield f"run {number}, round {gap}: missing; the run is {status}, with {found} of {rounds + 1} rounds"
    many = select(RoundRow.run_id, RoundRow.round, RoundRow.participants, RunRow.clients)
    many = many.join(RunRow, RunRow.id == RoundRow.run_id).where(RoundRow.participants > RunRow.clients)
    for run, t, participants, clients in connection.execute(many):
        yield f"run {run}, round {t}: {participants} participants; the run has {clients} clients"


def _check_clients(connection: Connection) -> Found:
    """The results of each round are computed from those of its clients, and the run has these clients."""
    c, r = ClientRoundRow, RoundRow
    correct, total = (sa.cast(column, Double) for column in (c.correct, c.total))  # a sum of integers may overflow
    share = correct / func.nullif(total, 0)
    of_clients = select(
        c.run_id, c.round, func.max(c.client).label("client"), func.sum(correct).label("correct"),
        func.sum(total).label("total"), func.avg(share).label("mean"), func.avg(share * share).label("square"),
        func.sum(c.loss).label("loss"),
    ).group_by(c.run_id, c.round).subquery()  # fmt: skip
    o = of_clients.c
    both = and_(r.run_id == o.run_id, r.round == o.round)
    query = select(r.run_id, r.round, r.accuracy, r.accuracy_mean, r.accuracy_std, r.test_loss, RunRow.clients, *list(o)[2:])
    query = query.join(of_clients, both).join(RunRow, RunRow.id == r.run_id)
    for run, t, *stored, clients, client, right, samples, mean, square, loss in connection.execute(query):
        where = f"run {run}, round {t}"
        if client >= clients:
            yield f"{where}: results of client {client}; the run has {clients}, counted from 0"
        if not samples:
            if any(value is not None for value in stored):
                yield f"{where}: it has an accuracy or a loss, and its clients no test samples"
            continue
        std = math.sqrt(max(0.0, square - mean * mean))
        expected = (right / samples, mean, std, loss / samples)
        for name, value, of in zip(("accuracy", "accuracy_mean", "accuracy_std", "test_loss"), stored, expected, strict=True):
            # Rounding of a variance of 0 leaves a deviation of 1e-8.
            if value is not None and not math.isclose(value, of, rel_tol=_NEAR, abs_tol=_NEAR):
                yield f"{where}: {name} is {value:.6g}, and {of:.6g} by its clients"
    lost = select(c.run_id, c.round).distinct().join(r, and_(r.run_id == c.run_id, r.round == c.round), isouter=True)
    for run, t in connection.execute(lost.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: clients' results without their round"


def _check_series(connection: Connection) -> Found:
    s, r = SeriesRow, RoundRow
    query = select(s.run_id, s.round, s.name).join(r, and_(r.run_id == s.run_id, r.round == s.round), isouter=True)
    for run, t, name in connection.execute(query.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: the series '{name}' without its round"


def _check_arrays(connection: Connection) -> Found:
    """Each array can be unpacked; what the clients sent adds up to the numbers of their round."""
    a, r = ArtifactRow, RoundRow
    names = (a.run_id, a.round, a.name, a.dtype, sa.cast(a.shape, sa.Text), a.data)
    query = select(*names, r.run_id, *(getattr(r, name) for name in _SENT))
    query = query.join(r, and_(r.run_id == a.run_id, r.round == a.round), isouter=True).order_by(a.run_id, a.round, a.name)
    for run, t, name, dtype, shape, data, in_round, *sent in connection.execution_options(yield_per=100).execute(query):
        where = f"run {run}, round {t}: the array '{name}'"
        try:
            array = unpack_array(data, dtype, json.loads(shape))
        except (*_NO_JSON, SyntaxError, zlib.error):
            yield f"{where} cannot be unpacked"
            continue
        if in_round is None:
            yield f"{where} without its round"
        elif name == "traffic" and (array.ndim != 2 or array.sum(axis=0).tolist() != sent):
            yield f"{where} does not add up to what the round has sent"


_COPIES = ("dataset", "model", "scheme", "partition_label", "clients", "join_ratio", "rounds", "method", "seed")
_RULES: tuple[Callable[[Connection], Found], ...] = (
    _check_references, _check_runs, _check_partitions, _check_rounds, _check_clients, _check_series, _check_arrays,
)  # fmt: skip


def _with_json_as_text(model: type[Base], *names: str) -> sa.Select[Any]:
    """A query of these columns, with JSON as text: it may be invalid."""
    columns = cast("Mapping[str, sa.Column[Any]]", model.__table__.c)
    return select(*(sa.cast(columns[n], sa.Text) if isinstance(columns[n].type, sa.JSON) else columns[n] for n in names))
