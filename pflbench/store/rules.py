"""Rules for the rows of a database, for `db check` and `import`. A problem is one line that names run and round.

SQLite stores any value in any column, and a database may come from anywhere. So values are checked first; only if all are valid,
the rules compute with them. The hash of a partition is not checked: that needs the dataset's labels.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import from_json
from sqlalchemy import JSON, CheckConstraint, Connection, Double, Integer, LargeBinary, String, Table, select

from pflbench.spec import from_stored
from pflbench.store.arrays import unpack_array
from pflbench.store.partitions import unpack_indices
from pflbench.store.schema import ArtifactRow, Base, ReferenceRoundRow, RoundRow, copies, is_environment

Found = Iterator[str]
_SHOWN = 40  # characters of a value
_FIRST = 10  # problems of a rule
_NEAR = 1e-6  # sums of floats in another order


def problems(connection: Connection) -> Found:
    """The first problems that each rule finds, and a line if there are more."""
    readable = True
    for line in _first(_values(connection)):
        readable = False
        yield line
    if readable:
        for check in _CHECKS:
            yield from _first(check(connection))
        for sentence, query in _CONTRADICTIONS.items():
            yield from _first(sentence.format(*row) for row in connection.exec_driver_sql(query))


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


_TYPES = (  # of a column's values: SQLite's names, and ours
    (JSON, "'text'", "JSON"),
    (LargeBinary, "'blob'", "binary data"),
    (Double, "'integer', 'real'", "a number"),
    (Integer, "'integer'", "a whole number"),
    (String, "'text'", "a text"),
)
_RANGES = ((Double, 'abs("{}") <= 1.7976931348623157e308', "a finite number"), (Integer, '"{}" >= 0', "at least 0"))


def _values(connection: Connection) -> Found:
    """Each value has its column's type and fulfils the schema's checks. Numbers are finite, integers at least 0."""
    is_sqlite = connection.dialect.name == "sqlite"  # a server enforces the types
    for table in Base.metadata.sorted_tables:
        conditions = []
        for column in table.columns if is_sqlite else ():
            types, words = next((types, words) for kind, types, words in _TYPES if isinstance(column.type, kind))
            null = ", 'null'" if column.nullable else ""
            conditions.append(_Condition(column.name, f'typeof("{column.name}") IN ({types}{null})', words, _TYPE))
        # A file from elsewhere may lack the checks of the schema.
        checks = {str(check.name): str(check.sqltext) for check in table.constraints if isinstance(check, CheckConstraint)}
        for name, text in sorted(checks.items()):
            conditions.append(_Condition(name.removeprefix(f"ck_{table.name}_"), text, text))
        for kind, must, words in _RANGES:
            named = [column.name for column in table.columns if isinstance(column.type, kind)]
            conditions += [_Condition(name, must.format(name), words) for name in named]
        if table is ReferenceRoundRow.__table__:
            conditions += [_Condition(x, f"{x} BETWEEN 0 AND 1", "a number from 0 to 1") for x in ("accuracy", "auc")]
        yield from _broken(connection, table, conditions)


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


# -- rows that contradict each other ------------------------------------------------------------------------------------

# A sentence, and a query for the rows that break the rule, with the values to put into the sentence.
_CONTRADICTIONS = {
    "run {}: it has {} clients, its partition {}": """
        SELECT run.id, run.clients, p.clients FROM run JOIN "partition" p ON p.id = run.partition_id
        WHERE run.clients != p.clients ORDER BY run.id""",
    "run {}, round {}: the run has {} rounds": """
        SELECT run.id, max(round), rounds FROM run JOIN round ON run_id = run.id
        GROUP BY run.id HAVING max(round) > rounds ORDER BY run.id""",
    "run {}, round {}: {} participants; the run has {} clients": """
        SELECT run_id, round, participants, clients FROM round JOIN run ON run.id = run_id
        WHERE participants > clients ORDER BY run_id, round""",
    "run {}, round {}: clients' results without their round": """
        SELECT DISTINCT run_id, round FROM client_round c
        WHERE NOT EXISTS (SELECT 1 FROM round r WHERE r.run_id = c.run_id AND r.round = c.round)""",
    "run {}, round {}: new clients' results without their round": """
        SELECT DISTINCT run_id, round FROM new_client n
        WHERE NOT EXISTS (SELECT 1 FROM round r WHERE r.run_id = n.run_id AND r.round = n.round)""",
    "run {}, round {}: results of new client {}; the run has {} clients, counted from 0": """
        SELECT DISTINCT run_id, round, client, clients FROM new_client JOIN run ON run.id = run_id
        WHERE client >= clients ORDER BY run_id, round, client""",
    "run {}, round {}: client {} is a new one, and has results as one that trains": """
        SELECT DISTINCT run_id, round, client FROM new_client JOIN client_round USING (run_id, round, client)
        ORDER BY run_id, round, client""",
    "run {}, round {}: the series '{}' without its round": """
        SELECT run_id, round, name FROM series s
        WHERE NOT EXISTS (SELECT 1 FROM round r WHERE r.run_id = s.run_id AND r.round = s.round)""",
    "run {}, round {}: the array '{}' without its round": """
        SELECT run_id, round, name FROM artifact a
        WHERE NOT EXISTS (SELECT 1 FROM round r WHERE r.run_id = a.run_id AND r.round = a.round)""",
}


def _check_references(connection: Connection) -> Found:
    """Foreign keys refer to existing rows. A server enforces that."""
    if connection.dialect.name == "sqlite":
        lost = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
        yield from (f"{n} rows of {table} belong to no {parent}" for (table, parent), n in lost.items())


def _check_runs(connection: Connection) -> Found:
    """Keys and copied columns are those of the specification; specification and environment can be read."""
    query = "SELECT *, CAST(spec AS TEXT) AS spec_text, CAST(environment AS TEXT) AS environment_text FROM run ORDER BY id"
    for run in connection.exec_driver_sql(query).mappings():
        number = run["id"]
        if not is_environment(_json_or_none(run["environment_text"])):
            yield f"run {number}: its environment is invalid"
        spec = from_stored(_json_or_none(run["spec_text"]))
        if spec is None:
            yield f"run {number}: its specification is invalid"
            continue
        if (run["key"], run["protocol"]) != (spec.key, spec.protocol):
            yield f"run {number}: its key {run['key']} or protocol {run['protocol']} is not that of its specification"
        for name, expected in copies(spec).items():
            if run[name] != expected:
                yield f"run {number}: {name} is {run[name]}, and {expected} in its specification"


def _json_or_none(text: str) -> Any:
    """Infinity and NaN are no JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return None


def _check_partitions(connection: Connection) -> Found:
    """Counts are of each client and class; index lists have as many samples."""
    as_text = "CAST(classes AS TEXT), CAST(train_counts AS TEXT), CAST(test_counts AS TEXT)"
    query = f'SELECT id, hash, clients, indices, {as_text} FROM "partition" ORDER BY id'
    for number, digest, clients, packed, *texts in connection.exec_driver_sql(query):
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


def _check_rounds(connection: Connection) -> Found:
    """Rounds count from 0 without a gap, and a finished run has all."""
    query = """SELECT run.id, status, rounds, count(round), coalesce(max(round), -1) FROM run LEFT JOIN round ON run_id = run.id
        GROUP BY run.id ORDER BY run.id"""
    for run, status, rounds, found, last in connection.exec_driver_sql(query).all():
        if last <= rounds and found != (rounds if status == "finished" else last) + 1:
            stored = connection.scalars(select(RoundRow.round).where(RoundRow.run_id == run).order_by(RoundRow.round))
            gap = next((t for t, present in enumerate(stored) if t != present), found)
            yield f"run {run}, round {gap}: missing; the run is {status}, with {found} of {rounds + 1} rounds"


_FROM_CLIENTS = ("accuracy", "accuracy_mean", "accuracy_std", "test_loss", "val_accuracy", "val_loss")


def _check_clients(connection: Connection) -> Found:
    """The results of each round are computed from those of its clients, and the run has these clients."""
    correct, total = (f"CAST({name} AS DOUBLE PRECISION)" for name in ("correct", "total"))  # a sum of integers may overflow
    share = f"({correct} / nullif(total, 0))"
    query = f"""
        SELECT run_id, round, max(clients), max(client), max(accuracy), max(accuracy_mean), max(accuracy_std), max(test_loss),
            max(val_accuracy), max(round.val_loss), sum({correct}), sum({total}), avg({share}), avg({share} * {share}), sum(loss),
            sum(val_correct), sum(val_total), sum(client_round.val_loss)
        FROM round JOIN client_round USING (run_id, round) JOIN run ON run.id = run_id
        GROUP BY run_id, round"""
    for run, t, clients, client, *found in connection.exec_driver_sql(query):
        *stored, right, samples, mean, square, loss, val_right, val_samples, val_loss = found
        where = f"run {run}, round {t}"
        if client >= clients:
            yield f"{where}: results of client {client}; the run has {clients}, counted from 0"
        if not samples:
            if any(value is not None for value in stored):
                yield f"{where}: it has an accuracy or a loss, and its clients no test samples"
            continue
        tested = (right / samples, mean, math.sqrt(max(0.0, square - mean * mean)), loss / samples)
        expected = (*tested, *((val_right / val_samples, val_loss / val_samples) if val_samples else (0.0, 0.0)))
        for name, value, of in zip(_FROM_CLIENTS, stored, expected, strict=True):
            # Rounding of a variance of 0 leaves a deviation of 1e-8.
            if value is not None and not math.isclose(value, of, rel_tol=_NEAR, abs_tol=_NEAR):
                yield f"{where}: {name} is {value:.6g}, and {of:.6g} by its clients"


def _check_arrays(connection: Connection) -> Found:
    """Each array can be unpacked; what the clients sent adds up to the numbers of their round."""
    query = """
        SELECT run_id, round, name, dtype, CAST(shape AS TEXT), data, params_up, params_down, scalars_up, scalars_down
        FROM artifact JOIN round USING (run_id, round) ORDER BY run_id, round, name"""
    for run, t, name, dtype, shape, data, *sent in connection.execution_options(yield_per=100).exec_driver_sql(query):
        try:
            array = unpack_array(data, dtype, json.loads(shape))
        except Exception:  # damaged data may raise anything
            yield f"run {run}, round {t}: the array '{name}' cannot be unpacked"
            continue
        if name == "traffic" and (array.ndim != 2 or array.sum(axis=0).tolist() != sent):
            yield f"run {run}, round {t}: the array '{name}' does not add up to what the round has sent"


_CHECKS = (_check_references, _check_runs, _check_partitions, _check_rounds, _check_clients, _check_arrays)
