"""What rows may hold: one list of rules, used by `db check` and by `import`. A problem is a line that names run and round.

SQLite keeps any value in any column, and a database may come from anywhere. So the first rule is about the values alone; where it
finds something, the others, which compute with them, are not asked. The hash of a partition is not judged: that needs the
dataset's labels.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import JSON, CheckConstraint, Column, Connection, Double, Integer, LargeBinary, Table, and_, func, select

from pflbench.spec import from_stored
from pflbench.store.arrays import LARGEST, unpack_array
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
LONGEST_JSON = 2**26  # bytes: the counts of 100,000 clients with 100 classes each
LONGEST_TEXT = 1000  # characters of a name or a message; SQLite keeps no text to its column's length
_SHOWN = 40  # characters of a value
_FIRST = 10  # problems of a kind
_NEAR = 1e-6  # sums of floats in another order
_SENT = ("params_up", "params_down", "scalars_up", "scalars_down")  # as the columns of the array `traffic`
_BYTES = {"float64": 8}  # of a number that is sent; 4 of all others
_NAMED = {"series": "series", "artifact": "array"}
_NO_JSON = (ValueError, TypeError, AttributeError, RecursionError)


def problems(connection: Connection) -> Found:
    """One pass over each table and rule. Of every kind the first ones, and a line that there are more."""
    readable = True
    for line in _first(_kinds(connection)) if connection.dialect.name == "sqlite" else ():
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

Condition = tuple[str, str, str]  # column, what must hold where there is a value, the same in words
_WHAT = """CASE typeof("{0}") WHEN 'text' THEN 'a text' WHEN 'blob' THEN 'binary data' ELSE coalesce("{0}", 'missing') END"""


def _kinds(connection: Connection) -> Found:
    """Each value is of its column's type, and no larger than can be read. A server sees to that by itself."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.create_function("is_utf8", 1, _is_utf8, deterministic=True)
    for table in Base.metadata.sorted_tables:
        conditions = [(column.name, *_kind(column)) for column in table.columns]
        yield from _broken(connection, table, conditions, _WHAT, 'CAST("{}" AS BLOB)')


def _kind(column: Column[Any]) -> tuple[str, str]:
    x = f'"{column.name}"'
    text = f"typeof({x}) = 'text' AND is_utf8(CAST({x} AS BLOB))"
    if isinstance(column.type, JSON):
        kind, words = f"{text} AND length(CAST({x} AS BLOB)) <= {LONGEST_JSON}", f"JSON of at most {LONGEST_JSON >> 20} MiB"
    elif isinstance(column.type, LargeBinary):
        kind, words = f"typeof({x}) = 'blob' AND length({x}) <= {LARGEST}", f"binary data of at most {LARGEST >> 20} MiB"
    elif isinstance(column.type, Double):
        kind, words = f"typeof({x}) IN ('integer', 'real')", "a number"
    elif isinstance(column.type, Integer):
        kind, words = f"typeof({x}) = 'integer'", "a whole number"
    else:
        longest = max(getattr(column.type, "length", None) or 0, LONGEST_TEXT)
        kind = f"{text} AND length({x}) <= {longest} AND instr({x}, char(0)) = 0"
        words = f"a text of at most {longest} characters in UTF-8"
    return f"{x} IS NULL OR {kind}" if column.nullable else kind, words


def _is_utf8(data: bytes | None) -> bool:
    try:
        return data is not None and data.decode() is not None
    except UnicodeDecodeError:
        return False


def _ranges(connection: Connection) -> Found:
    """Those of the schema's checks, which a file from elsewhere may lack; and numbers are finite, whole ones at least 0."""
    for table in Base.metadata.sorted_tables:
        checks = [check for check in table.constraints if isinstance(check, CheckConstraint)]
        conditions = [
            (str(check.name).removeprefix(f"ck_{table.name}_"), str(check.sqltext), str(check.sqltext))
            for check in sorted(checks, key=lambda check: str(check.name))
        ]
        for column in table.columns:
            if isinstance(column.type, Double):
                conditions.append((column.name, f'abs("{column.name}") <= 1.7976931348623157e308', "a finite number"))
            elif isinstance(column.type, Integer):
                conditions.append((column.name, f'"{column.name}" >= 0', "at least 0"))
        if table is ReferenceRoundRow.__table__:
            conditions += [(name, f"{name} BETWEEN 0 AND 1", "a number from 0 to 1") for name in ("accuracy", "auc")]
        yield from _broken(connection, table, conditions, 'CAST("{}" AS TEXT)', '"{}"')


def _broken(connection: Connection, table: Table, conditions: list[Condition], value: str, key: str) -> Found:
    """Rows for which a condition does not hold. value, key: how the value is shown and the row's key read, in SQL."""
    if not conditions:
        return
    names = ["run_id", "round", "name"] if table is ArtifactRow.__table__ else [column.name for column in table.primary_key]
    keys = ", ".join(key.format(name) for name in names)
    which = " ".join(f"WHEN NOT ({must}) THEN {i}" for i, (_, must, _) in enumerate(conditions))
    shown = " ".join(f"WHEN NOT ({must}) THEN substr({value.format(name)}, 1, {_SHOWN})" for name, must, _ in conditions)
    wrong = " OR ".join(f"NOT ({must})" for _, must, _ in conditions)
    query = f'SELECT {keys}, CASE {which} END, CASE {shown} END FROM "{table.name}" WHERE {wrong}'
    words = {"id": table.name, "run_id": "run", "reference_id": "reference_run", "name": _NAMED.get(table.name)}
    for *row, i, found in connection.exec_driver_sql(query):
        values = (of.decode(errors="replace") if isinstance(of, bytes) else of for of in row)
        where = ", ".join(f"{words.get(name, name)} {of}" for name, of in zip(names, values, strict=True))
        column, _, expected = conditions[i]
        yield f"{where}: {column} is {found}; expected {expected}"


# -- runs and partitions ------------------------------------------------------------------------------------------------


def _of_runs(connection: Connection) -> Found:
    """Keys, copies, what was written down."""
    names = ("id", "key", "protocol", "spec", "environment", *_COPIES)
    for number, key, protocol, text, record, *copied in connection.execute(_plain(RunRow, *names).order_by(RunRow.id)):
        if not is_environment(_json_or_none(record)):
            yield f"run {number}: its environment is no JSON of one"
        spec = from_stored(_json_or_none(text))
        if spec is None:
            yield f"run {number}: its specification is no JSON of one"
            continue
        if (key, protocol) != (spec.key, spec.protocol):
            yield f"run {number}: its key {key} or protocol {protocol} is not that of its specification"
        expected = copies(spec)
        for name, value in zip(_COPIES, copied, strict=True):
            if value != expected[name]:
                yield f"run {number}: {name} is {value}, and {expected[name]} in its specification"


def _json_or_none(text: str) -> Any:
    try:
        return _json(text)
    except _NO_JSON:
        return None


def _json(text: str) -> Any:
    """Infinity and NaN are no JSON, and 1e999 would become one of them."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(digits)
        return value

    def constant(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_float=number, parse_constant=constant)


def _of_partitions(connection: Connection) -> Found:
    names = ("id", "hash", "clients", "indices", "spec", "classes", "train_counts", "test_counts")
    for number, digest, clients, packed, *texts in connection.execute(_plain(PartitionRow, *names).order_by(PartitionRow.id)):
        where = f"partition {number}"
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            yield f"{where}: its hash is not 64 hexadecimal digits"
        try:
            spec, classes, *sides = map(_json, texts)
        except _NO_JSON:
            yield f"{where}: its specification, classes or counts are no JSON"
            continue
        if not isinstance(spec, dict) or not isinstance(classes, list) or not all(isinstance(one, str) for one in classes):
            yield f"{where}: its specification is no object, or its classes no list of names"
        elif not all(isinstance(s, list) and len(s) == clients and all(_are_counts(of, len(classes)) for of in s) for s in sides):
            yield f"{where}: its counts are not those of {clients} clients and {len(classes)} classes"
        else:
            yield from _of_indices(where, packed, dict(zip(("train", "test"), sides, strict=True)))
    query = select(RunRow.id, RunRow.clients, PartitionRow.clients).join(PartitionRow, PartitionRow.id == RunRow.partition_id)
    for number, wanted, clients in connection.execute(query.where(RunRow.clients != PartitionRow.clients).order_by(RunRow.id)):
        yield f"run {number}: it has {wanted} clients, its partition {clients}"


def _are_counts(values: Any, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _of_indices(where: str, packed: bytes | None, counts: Mapping[str, list[list[int]]]) -> Found:
    try:
        indices = {} if packed is None else unpack_indices(packed)
    except Exception:  # of a damaged zip anything may be raised
        yield f"{where}: its indices cannot be unpacked"
        return
    held = {f"{name}_{i}": sum(of) for name, side in counts.items() for i, of in enumerate(side)}
    for name in held if indices else ():
        if name not in indices or len(indices[name]) != held[name]:
            there = len(indices[name]) if name in indices else "no"
            yield f"{where}: {there} samples in the list {name}, {held[name]} in its counts"


# -- rounds -------------------------------------------------------------------------------------------------------------


def _of_rounds(connection: Connection) -> Found:
    """From 0 on without a gap; all of a finished run; with clients that the run has."""
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
            gap = next((t for t, there in enumerate(connection.scalars(rows)) if t != there), found)
            yield f"run {number}, round {gap}: missing; the run is {status}, with {found} of {rounds + 1} rounds"
    many = select(RoundRow.run_id, RoundRow.round, RoundRow.participants, RunRow.clients)
    many = many.join(RunRow, RunRow.id == RoundRow.run_id).where(RoundRow.participants > RunRow.clients)
    for run, t, participants, clients in connection.execute(many):
        yield f"run {run}, round {t}: {participants} participants; the run has {clients} clients"


def _of_clients(connection: Connection) -> Found:
    """Each round's results are those of its clients, and no client is one that the run has not."""
    c, r = ClientRoundRow, RoundRow
    correct, total = (sa.cast(column, Double) for column in (c.correct, c.total))  # of whole numbers the sum can be too large
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
            # A variance of nothing leaves a deviation of 1e-8.
            if value is not None and not math.isclose(value, of, rel_tol=_NEAR, abs_tol=_NEAR):
                yield f"{where}: {name} is {value:.6g}, and {of:.6g} by its clients"
    lost = select(c.run_id, c.round).distinct().join(r, and_(r.run_id == c.run_id, r.round == c.round), isouter=True)
    for run, t in connection.execute(lost.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: clients' results without their round"


def _of_series(connection: Connection) -> Found:
    s, r = SeriesRow, RoundRow
    query = select(s.run_id, s.round, s.name).join(r, and_(r.run_id == s.run_id, r.round == s.round), isouter=True)
    for run, t, name in connection.execute(query.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: the series '{name}' without its round"


def _of_arrays(connection: Connection) -> Found:
    """Each can be unpacked; what clients sent adds up to what their round says."""
    a, r = ArtifactRow, RoundRow
    names = (a.run_id, a.round, a.name, a.dtype, sa.cast(a.shape, sa.Text), a.data)
    query = select(*names, r.run_id, *(getattr(r, name) for name in _SENT))
    query = query.join(r, and_(r.run_id == a.run_id, r.round == a.round), isouter=True).order_by(a.run_id, a.round, a.name)
    for run, t, name, dtype, shape, data, there, *sent in connection.execution_options(yield_per=100).execute(query):
        where = f"run {run}, round {t}: the array '{name}'"
        try:
            array = unpack_array(data, dtype, json.loads(shape))
        except (*_NO_JSON, SyntaxError, zlib.error):
            yield f"{where} cannot be unpacked"
            continue
        if there is None:
            yield f"{where} without its round"
        elif name == "traffic" and (array.ndim != 2 or array.sum(axis=0).tolist() != sent):
            yield f"{where} does not add up to what the round has sent"


def _of_bytes(connection: Connection) -> Found:
    """Bytes are those of the numbers that were sent."""
    r = RoundRow
    sizes = {}
    for number, text in connection.execute(_plain(RunRow, "id", "spec")):
        try:
            sizes[number] = _BYTES.get(json.loads(text)["train"]["dtype"], 4)
        except (*_NO_JSON, KeyError):
            continue  # told of where specifications are looked at
    wide = [number for number, size in sizes.items() if size != 4]
    word = sa.case((r.run_id.in_(wide), 8), else_=4)
    wrong = sa.or_(r.bytes_up != word * (r.params_up + r.scalars_up), r.bytes_down != word * (r.params_down + r.scalars_down))
    for run, t in connection.execute(select(r.run_id, r.round).where(wrong)):
        if run in sizes:
            yield f"run {run}, round {t}: its bytes are not those of the parameters and scalars sent"


_COPIES = ("dataset", "model", "scheme", "partition_label", "clients", "join_ratio", "rounds", "method", "seed")
_RULES: tuple[Callable[[Connection], Found], ...] = (
    _ranges, _of_runs, _of_partitions, _of_rounds, _of_clients, _of_series, _of_arrays, _of_bytes,
)  # fmt: skip


def _plain(model: type[Base], *names: str) -> sa.Select[Any]:
    """Columns with JSON as the text that it is: it may be none."""
    columns = cast("Mapping[str, sa.Column[Any]]", model.__table__.c)
    return select(*(sa.cast(columns[n], sa.Text) if isinstance(columns[n].type, sa.JSON) else columns[n] for n in names))
