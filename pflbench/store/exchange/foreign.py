"""A database from anywhere, looked through before anything of it is taken: it names what it likes, and holds what it likes.

SQLite keeps any value in any column, reads a view as it reads a table, and calls functions that a view names. So the tables
must be tables, with our columns; every value must be of its column's type and in its range; a run's specification must be
one, with its own key; and its rounds must be there without a gap.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError
from sqlalchemy import JSON, Column, Double, Engine, LargeBinary, String, Table

from pflbench.errors import UserError, why
from pflbench.spec import RunSpec, key_of, protocol_of
from pflbench.store.failures import friendly
from pflbench.store.schema import (
    ENVIRONMENT_OBJECTS,
    STATUSES,
    ArtifactRow,
    Base,
    ClientRoundRow,
    PartitionRow,
    ReferenceRoundRow,
    ReferenceRunRow,
    RoundRow,
    RunRow,
    SeriesRow,
    copies,
)

READ: tuple[type[Base], ...] = (
    PartitionRow, RunRow, RoundRow, ClientRoundRow, SeriesRow, ArtifactRow, ReferenceRunRow, ReferenceRoundRow,
)  # fmt: skip
LONGEST_JSON = 2**26  # bytes: the counts of 100,000 clients with 100 classes each
LONGEST_TEXT = 1000  # characters of a name or a message
LARGEST = 2**29  # bytes of an array, packed or unpacked
_KINDS_OF_NUMBERS = "biuf"
_SHOWN = 40  # characters of a value that is wrong

_FRACTIONS = {"accuracy", "accuracy_mean", "accuracy_std", "auc"}
_LOSSES = {"test_loss", "train_loss", "loss"}  # finite, whatever else they are


@dataclass(frozen=True)
class Rule:
    """Of a column: a condition in SQL that no row may fulfil, and what is expected in its place."""

    column: str
    wrong: str
    expected: str


def require_tables(engine: Engine, name: str, *, whole: bool) -> None:
    """Raises UserError where a table that is read is something else. whole: and where one, or a column, is missing."""
    with _raw(engine) as raw:
        kinds = {
            row[0]: row[1:] for row in raw.execute("SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')")
        }
        for table in ("pflbench_version", *(model.__tablename__ for model in READ)):
            kind, statement = kinds.get(table, (None, ""))
            if kind is not None and (kind != "table" or re.match(r"\s*CREATE\s+VIRTUAL\b", statement or "", re.IGNORECASE)):
                raise UserError(f"{name}: '{table}' is {'a view' if kind == 'view' else 'a virtual table'}, no table.", _NOTHING)
        for model in READ if whole else ():
            _require_columns(raw, name, model.__table__)  # type: ignore[arg-type]


def require_sound(engine: Engine, name: str) -> None:
    """Looks at every row that could be taken. Raises UserError that names the first one that is wrong."""
    with _raw(engine) as raw, friendly(engine.url):
        raw.create_function("is_utf8", 1, _is_utf8, deterministic=True)
        for model in READ:
            _require_values(raw, name, model.__table__)  # type: ignore[arg-type]
            if model is PartitionRow:
                _require_partitions(raw, name)
            if model is RunRow:
                _require_runs(raw, name)
            if model is RoundRow:
                _require_all_rounds(raw, name)
        _require_arrays(raw, name)


def drop_programs(raw: sqlite3.Connection) -> None:
    """Takes triggers and views out of a copy whose schema is to be changed: they would act in it."""
    for kind, name in raw.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchall():
        raw.execute(f'DROP {kind} "{name.replace(chr(34), 2 * chr(34))}"')
    raw.commit()


_NOTHING = "Nothing of it was taken."


def _refusal(name: str, table: str, row: Mapping[str, Any], column: str, value: str, expected: str) -> UserError:
    where = ", ".join(f"{key} {_shown(value)}" for key, value in row.items())
    out = f" To leave that run out, remove it from a copy: pflbench runs rm {row['run_id']} --db COPY" if "run_id" in row else ""
    return UserError(f"{name}, table {table}, {where}: {column} is {value}; expected {expected}.", _NOTHING + out)


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bytes):
        return "binary data"
    text = "".join(c if c.isprintable() else "?" for c in str(value))
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"'{text}'" if isinstance(value, str) else text


@contextmanager
def _raw(engine: Engine) -> Iterator[sqlite3.Connection]:
    """A connection of the driver's, which gives text as it is, whatever that may be."""
    borrowed = engine.raw_connection()
    raw = borrowed.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.text_factory = lambda data: data.decode(errors="replace")
    try:
        raw.execute("PRAGMA trusted_schema=OFF")
        yield raw
    finally:
        borrowed.invalidate()  # it is no longer as others expect it


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- tables and columns -----------------------------------------------------------------------------------------------


def _require_columns(raw: sqlite3.Connection, name: str, table: Table) -> None:
    found = {row[1]: row for row in raw.execute(f'PRAGMA table_xinfo("{table.name}")')}
    for column in table.columns:
        if column.name not in found:
            what = f"no column '{column.name}'" if found else "no such table"
            raise UserError(f"{name}, table {table.name}: {what}, although its schema should have it.", _NOTHING)
        if found[column.name][6]:  # computed when it is read, by whatever it says
            raise UserError(f"{name}, table {table.name}: the column '{column.name}' is computed, not stored.", _NOTHING)
    key = [row[1] for row in sorted(found.values(), key=lambda row: row[5]) if row[5]]
    if key != [column.name for column in table.primary_key]:
        ours = ", ".join(column.name for column in table.primary_key)
        raise UserError(f"{name}, table {table.name}: the primary key is ({', '.join(key)}), not ({ours}).", _NOTHING)


# -- values -----------------------------------------------------------------------------------------------------------


def _require_values(raw: sqlite3.Connection, name: str, table: Table) -> None:
    """The first row of a table, in the order of its key, with a value that its column cannot have."""
    rules = [rule for column in table.columns for rule in _rules(table.name, column)]
    source, more = _SOURCES.get(table.name, (f'"{table.name}" t', []))
    rules += more
    keys = [column.name for column in table.primary_key]
    if table is ArtifactRow.__table__:
        keys = ["run_id", "round", "name"]
    which = " ".join(f"WHEN {rule.wrong} THEN {i}" for i, rule in enumerate(rules))
    value = " ".join(f"WHEN {rule.wrong} THEN {_beginning(rule.column)}" for rule in rules)
    order = ", ".join(f"t.{key}" for key in keys)
    query = f"SELECT {order}, CASE {which} END, CASE {value} END FROM {source} WHERE {' OR '.join(rule.wrong for rule in rules)}"
    found = raw.execute(f"{query} ORDER BY {order} LIMIT 1").fetchone()
    if found is not None:
        rule = rules[found[-2]]
        row = dict(zip(keys, found, strict=False))
        raise _refusal(name, table.name, row, rule.column, _shown(found[-1]), rule.expected)


def _beginning(column: str) -> str:
    """Of a long value; of a short one, all."""
    return f"CASE WHEN typeof(t.{column}) IN ('text', 'blob') THEN substr(t.{column}, 1, {_SHOWN + 1}) ELSE t.{column} END"


def _rules(table: str, column: Column[Any]) -> list[Rule]:
    """What a column's type and name say of its values."""
    condition, expected = _condition(table, column)
    x = f"t.{column.name}"
    # Of NULL every comparison is NULL, which is not true.
    wrong = f"({x} IS NOT NULL AND NOT ({condition}))" if column.nullable else f"(({condition}) IS NOT TRUE)"
    return [Rule(column.name, wrong, expected)]


def _condition(table: str, column: Column[Any]) -> tuple[str, str]:
    x = f"t.{column.name}"
    if isinstance(column.type, JSON):
        return (
            f"typeof({x}) = 'text' AND length(CAST({x} AS BLOB)) <= {LONGEST_JSON} AND is_utf8(CAST({x} AS BLOB))",
            f"JSON of at most {LONGEST_JSON >> 20} MiB",
        )
    if isinstance(column.type, LargeBinary):
        return f"typeof({x}) = 'blob' AND length({x}) <= {LARGEST}", f"binary data of at most {LARGEST >> 20} MiB"
    if isinstance(column.type, String):
        length = max(column.type.length or 0, LONGEST_TEXT)  # SQLite keeps no text to its column's length
        text = f"typeof({x}) = 'text' AND length({x}) <= {length} AND instr({x}, char(0)) = 0 AND is_utf8(CAST({x} AS BLOB))"
        return text, f"a text of at most {length} characters in UTF-8"
    number = f"typeof({x}) IN ('integer', 'real')"
    if isinstance(column.type, Double) and column.name in _FRACTIONS:
        return f"{number} AND {x} BETWEEN 0 AND 1", "a number from 0 to 1"
    if isinstance(column.type, Double) and column.name in _LOSSES:
        return f"{number} AND abs({x}) <= 1.7976931348623157e308", "a finite number"
    if isinstance(column.type, Double):
        return f"{number} AND {x} BETWEEN 0 AND 1.7976931348623157e308", "a finite number, at least 0"
    return f"typeof({x}) = 'integer' AND {x} >= 0", "a whole number, at least 0"


_RUNS = (
    "(WITH r AS MATERIALIZED (SELECT id, clients, rounds, "
    "coalesce((SELECT max(round) FROM round WHERE run_id = run.id), -1) AS last FROM run) SELECT * FROM r) r"
)
_STORED = Rule("round", "t.round > r.last", "a round that the table 'round' has")
# Table -> where its rows come from, and rules that look at their run. Rows of no run are never read.
_SOURCES: dict[str, tuple[str, list[Rule]]] = {
    "round": (
        f"{_RUNS} CROSS JOIN round t ON t.run_id = r.id",
        [
            Rule("round", "t.round > r.rounds", "at most the rounds of its run"),
            Rule("participants", "t.participants > r.clients", "at most the clients of its run"),
        ],
    ),
    "client_round": (
        f"{_RUNS} CROSS JOIN client_round t ON t.run_id = r.id",
        [
            Rule("client", "t.client >= r.clients", "a client of its run, counted from 0"),
            Rule("correct", "t.correct > t.total", "at most the client's test samples"),
            _STORED,
        ],
    ),
    "series": (f"{_RUNS} CROSS JOIN series t ON t.run_id = r.id", [_STORED]),
    "artifact": (f"{_RUNS} CROSS JOIN artifact t ON t.run_id = r.id", [_STORED]),
}


# -- runs -------------------------------------------------------------------------------------------------------------


_COPIES = "protocol", "dataset", "model", "scheme", "partition_label", "clients", "join_ratio", "rounds", "method", "seed"


def _require_runs(raw: sqlite3.Connection, name: str) -> None:
    partitions = dict(raw.execute("SELECT id, clients FROM partition"))
    columns = "id, status, attempt, partition_id, key, spec, environment"
    for number, status, attempt, partition, key, text, record, *copied in raw.execute(
        f"SELECT {columns}, {', '.join(_COPIES)} FROM run ORDER BY id"
    ):
        row = {"id": number}
        if status not in STATUSES:
            raise _refusal(name, "run", row, "status", _shown(status), f"one of {', '.join(STATUSES)}")
        if attempt < 1:
            raise _refusal(name, "run", row, "attempt", _shown(attempt), "at least 1")
        environment = _json(name, "run", row, "environment", record, dict)
        for entry in ENVIRONMENT_OBJECTS:
            if not isinstance(environment.get(entry, {}), dict):
                raise _refusal(name, "run", row, f"environment.{entry}", _shown(str(environment[entry])), "an object")
        plain = _json(name, "run", row, "spec", text, dict)
        spec = _specification(name, row, plain)
        if key != key_of(plain):
            raise _refusal(name, "run", row, "key", _shown(key), f"'{key_of(plain)}', that of its specification")
        expected = {"protocol": protocol_of(plain), **copies(spec)}
        for column, value in zip(_COPIES, copied, strict=True):
            if value != expected[column]:
                raise _refusal(
                    name, "run", row, column, _shown(value), f"{_shown(expected[column])}, as its specification has it"
                )
        if partition is not None and partitions.get(partition) != spec.partition.clients:
            raise _refusal(name, "run", row, "partition_id", _shown(partition), "a partition of as many clients as the run has")


def _specification(name: str, row: Mapping[str, Any], plain: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(("spec", *map(str, first["loc"])))
        if first["type"] == "missing":
            raise _refusal(name, "run", row, at, "missing", "a whole specification") from None
        value = first["input"]
        shown = _shown(json.dumps(value) if isinstance(value, dict | list) else value)
        raise _refusal(name, "run", row, at, shown, why([first]).removeprefix("it must be ")) from None


def _json(name: str, table: str, row: Mapping[str, Any], column: str, text: str, kind: type[Any]) -> Any:
    """A column's JSON. Infinity and NaN are no JSON, and 1e999 would become one of them."""

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(digits)
        return value

    def constant(word: str) -> None:
        raise ValueError(word)

    try:
        value = json.loads(text, parse_float=number, parse_constant=constant)
    except (ValueError, RecursionError):
        raise _refusal(name, table, row, column, _shown(text), "JSON") from None
    if not isinstance(value, kind):
        raise _refusal(name, table, row, column, _shown(text), f"JSON: {'an object' if kind is dict else 'a list'}")
    return value


def _require_all_rounds(raw: sqlite3.Connection, name: str) -> None:
    """Rounds 0, 1, ... without a gap; of a finished run, all."""
    query = """SELECT id, status, rounds, count(round), coalesce(max(round), -1) FROM run LEFT JOIN round ON run_id = id
        GROUP BY id ORDER BY id"""
    for number, status, rounds, count, last in raw.execute(query).fetchall():
        last = rounds if status == "finished" else last
        if count == last + 1:
            continue
        there = {t for (t,) in raw.execute("SELECT round FROM round WHERE run_id = ?", (number,))}
        gap = next(t for t in range(last + 1) if t not in there)
        wanted = f"every round from 0 to {last}{' of a finished run' if status == 'finished' else ''}"
        raise _refusal(name, "round", {"run_id": number}, f"round {gap}", "missing", wanted)


# -- partitions and arrays --------------------------------------------------------------------------------------------


def _require_partitions(raw: sqlite3.Connection, name: str) -> None:
    query = "SELECT id, hash, clients, spec, classes, train_counts, test_counts FROM partition ORDER BY id"
    for number, digest, clients, spec, names, *counts in raw.execute(query):
        row = {"id": number}
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise _refusal(name, "partition", row, "hash", _shown(digest), "64 hexadecimal digits")
        _json(name, "partition", row, "spec", spec, dict)
        classes = _json(name, "partition", row, "classes", names, list)
        if not all(isinstance(one, str) for one in classes):
            raise _refusal(name, "partition", row, "classes", _shown(names), "a list of names")
        for column, text in zip(("train_counts", "test_counts"), counts, strict=True):
            found = _json(name, "partition", row, column, text, list)
            if len(found) != clients or not all(_are_counts(client, len(classes)) for client in found):
                wanted = f"for each of {clients} clients the number of samples of each of {len(classes)} classes"
                raise _refusal(name, "partition", row, column, _shown(text), wanted)


def _are_counts(values: Any, length: int) -> bool:
    return isinstance(values, list) and len(values) == length and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _require_arrays(raw: sqlite3.Connection, name: str) -> None:
    """What `arrays.unpack_array` will make of each: a few bytes can unpack to any number."""
    query = "SELECT run_id, round, name, dtype, shape, data FROM artifact WHERE run_id IN (SELECT id FROM run) ORDER BY 1, 2, 3"
    for run, t, of, dtype, text, data in raw.execute(query):
        row = {"run_id": run, "round": t, "name": of}
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError):
            kind = np.dtype(object)
        if kind.kind not in _KINDS_OF_NUMBERS or kind.name != dtype:
            raise _refusal(name, "artifact", row, "dtype", _shown(dtype), "a type of numbers, such as 'float32'")
        shape = _json(name, "artifact", row, "shape", text, list)
        if not _are_counts(shape, len(shape)) or len(shape) > 8:
            raise _refusal(name, "artifact", row, "shape", _shown(text), "a list of at most 8 lengths")
        if (size := math.prod(shape) * kind.itemsize) > LARGEST:
            raise _refusal(name, "artifact", row, "shape", _shown(text), f"an array of at most {LARGEST >> 20} MiB")
        if not _unpacks_to(data, size):
            raise _refusal(name, "artifact", row, "data", f"{len(data)} bytes", f"{size} bytes, packed by zlib")


def _unpacks_to(data: bytes, size: int) -> bool:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(data, size + 1)
    except zlib.error:
        return False
    return len(unpacked) == size and unpacking.eof
