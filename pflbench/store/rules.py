"""Rows of a database that contradict one another: each problem a line that names the run and the round.

What cannot be judged from the database alone is left: the hash of a partition, which needs the dataset's labels, and what follows
from a specification that this pflbench does not know.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

import numpy as np
import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import CheckConstraint, Connection, Float, Table, and_, func, select

from pflbench.spec import RunSpec, is_specification, key_of, protocol_of
from pflbench.store import numbering
from pflbench.store.arrays import unpack_array
from pflbench.store.partitions import unpack_indices
from pflbench.store.schema import (
    ArtifactRow,
    Base,
    ClientRoundRow,
    PartitionRow,
    RoundRow,
    RunRow,
    SeriesRow,
    copies,
    is_environment,
)

_SHOWN = 10  # problems of a kind
_NEAR = 1e-6  # sums of floats in another order
_SENT = ("params_up", "params_down", "scalars_up", "scalars_down")  # as the columns of the array `traffic`
_BYTES = {"float64": 8}  # of a number that is sent; 4 of all others


def contradictions(connection: Connection) -> list[str]:
    """One pass over each table and rule. Of every kind the first ones, and a line that there are more."""
    problems: list[str] = []
    for rule in _RULES:
        found = list(islice(rule(connection), _SHOWN + 1))
        problems += found[:_SHOWN]
        if len(found) > _SHOWN:
            problems.append(f"and more that are like this: {found[_SHOWN]}")
    return problems


def refused_rows(table: Table) -> tuple[sa.Select[Any], list[str]]:
    """Rows that the schema's checks would refuse: their keys, and the number of the check; what the checks say."""
    checks = [check for check in table.constraints if isinstance(check, CheckConstraint)]
    checks.sort(key=lambda check: str(check.name))
    broken = [sa.text(f"NOT ({check.sqltext})") for check in checks]
    which = sa.case(*((condition, i) for i, condition in enumerate(broken)))
    return select(*table.primary_key, which).where(sa.or_(sa.false(), *broken)), [str(check.sqltext) for check in checks]


def _refused(connection: Connection) -> Iterator[str]:
    for table in Base.metadata.sorted_tables:
        query, conditions = refused_rows(table)
        for *key, which in connection.execute(query) if conditions else ():
            row = dict(zip((column.name for column in table.primary_key), key, strict=True))
            run = f"run {row.pop('run_id', row.pop('id', None))}"
            where = ", ".join([run, *(f"{name} {value}" for name, value in row.items())])
            yield f"{where}, table {table.name}: this must hold, and does not: {conditions[which]}"


def _of_specifications(connection: Connection) -> Iterator[str]:
    """Keys and copies. A specification that is not known here is judged by its key alone."""
    names = ("id", "key", "protocol", "spec", *_COPIES)
    for number, key, protocol, plain, *copied in connection.execute(_plain(RunRow, *names).order_by(RunRow.id)):
        try:
            plain = json.loads(plain)
            if not is_specification(plain):
                raise ValueError(plain)
            if (key, protocol) != (key_of(plain), protocol_of(plain)):
                yield f"run {number}: its key {key} or protocol {protocol} is not that of its specification"
            spec = RunSpec.model_validate(plain)
        except ValidationError:
            continue
        except (ValueError, TypeError, AttributeError, RecursionError):
            yield f"run {number}: its specification is no JSON of one"
            continue
        for name, value in zip(_COPIES, copied, strict=True):
            if value != copies(spec)[name]:
                yield f"run {number}: {name} is {value}, and {copies(spec)[name]} in its specification"


def _of_environments(connection: Connection) -> Iterator[str]:
    for number, plain in connection.execute(_plain(RunRow, "id", "environment").order_by(RunRow.id)):
        try:
            sound = is_environment(json.loads(plain))
        except (ValueError, TypeError, RecursionError):
            sound = False
        if not sound:
            yield f"run {number}: its environment is no JSON of one"


def _of_partitions(connection: Connection) -> Iterator[str]:
    names = ("id", "clients", "classes", "train_counts", "test_counts", "indices")
    for number, clients, *texts, packed in connection.execute(_plain(PartitionRow, *names).order_by(PartitionRow.id)):
        try:
            classes, *sides = map(json.loads, texts)
            counts = {name: np.array(side, dtype=np.int64) for name, side in zip(("train", "test"), sides, strict=True)}
        except (ValueError, TypeError, OverflowError, RecursionError):
            yield f"partition {number}: its counts are no numbers by client and class"
            continue
        if any(array.shape != (clients, len(classes)) or (array < 0).any() for array in counts.values()):
            yield f"partition {number}: its counts are not those of {clients} clients and {len(classes)} classes"
            continue
        try:
            indices = {} if packed is None else unpack_indices(packed)
        except Exception:  # of a damaged zip anything may be raised
            yield f"partition {number}: its indices cannot be unpacked"
            continue
        held = {f"{name}_{i}": int(of.sum()) for name, array in counts.items() for i, of in enumerate(array)}
        for name in held if indices else ():
            if name not in indices or len(indices[name]) != held[name]:
                there = len(indices[name]) if name in indices else "no"
                yield f"partition {number}: {there} samples in the list {name}, {held[name]} in its counts"
    query = select(RunRow.id, RunRow.clients, PartitionRow.clients).join(PartitionRow, PartitionRow.id == RunRow.partition_id)
    for number, wanted, clients in connection.execute(query.where(RunRow.clients != PartitionRow.clients).order_by(RunRow.id)):
        yield f"run {number}: it has {wanted} clients, its partition {clients}"


def _of_rounds(connection: Connection) -> Iterator[str]:
    """From 0 on without a gap; all of a finished run."""
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


def _of_clients(connection: Connection) -> Iterator[str]:
    """Each round's results are those of its clients, and no client is one that the run has not."""
    c, r = ClientRoundRow, RoundRow
    share = sa.cast(c.correct, Float(53)) / func.nullif(c.total, 0)
    of_clients = select(
        c.run_id, c.round, func.max(c.client).label("client"), func.sum(c.correct).label("correct"),
        func.sum(c.total).label("total"), func.avg(share).label("mean"), func.avg(share * share).label("square"),
        func.sum(c.loss).label("loss"),
    ).group_by(c.run_id, c.round).subquery()  # fmt: skip
    o = of_clients.c
    both = and_(r.run_id == o.run_id, r.round == o.round)
    query = select(r.run_id, r.round, r.accuracy, r.accuracy_mean, r.accuracy_std, r.test_loss, RunRow.clients, *list(o)[2:])
    query = query.join(of_clients, both).join(RunRow, RunRow.id == r.run_id)
    for run, t, *stored, clients, client, correct, total, mean, square, loss in connection.execute(query):
        where = f"run {run}, round {t}"
        if client >= clients:
            yield f"{where}: results of client {client}; the run has {clients}, counted from 0"
        if not total:
            continue
        std = math.sqrt(max(0.0, square - mean * mean))
        expected = (float(correct) / float(total), mean, std, loss / float(total))
        for name, value, of in zip(("accuracy", "accuracy_mean", "accuracy_std", "test_loss"), stored, expected, strict=True):
            # A variance of nothing leaves a deviation of 1e-8.
            if value is not None and not math.isclose(value, of, rel_tol=_NEAR, abs_tol=_NEAR):
                yield f"{where}: {name} is {value:.6g}, and {of:.6g} by its clients"
    lost = select(c.run_id, c.round).distinct().join(r, and_(r.run_id == c.run_id, r.round == c.round), isouter=True)
    for run, t in connection.execute(lost.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: clients' results without their round"


def _of_series(connection: Connection) -> Iterator[str]:
    s, r = SeriesRow, RoundRow
    query = select(s.run_id, s.round, s.name).join(r, and_(r.run_id == s.run_id, r.round == s.round), isouter=True)
    for run, t, name in connection.execute(query.where(r.run_id.is_(None))):
        yield f"run {run}, round {t}: the series '{name}' without its round"


def _of_arrays(connection: Connection) -> Iterator[str]:
    """Each can be unpacked; what clients sent adds up to what their round says."""
    a, r = ArtifactRow, RoundRow
    names = (a.run_id, a.round, a.name, a.dtype, sa.cast(a.shape, sa.Text), a.data)
    query = select(*names, r.run_id, *(getattr(r, name) for name in _SENT))
    query = query.join(r, and_(r.run_id == a.run_id, r.round == a.round), isouter=True).order_by(a.run_id, a.round, a.name)
    for run, t, name, dtype, shape, data, there, *sent in connection.execution_options(yield_per=100).execute(query):
        where = f"run {run}, round {t}: the array '{name}'"
        try:
            array = unpack_array(data, dtype, json.loads(shape))
        except (ValueError, TypeError, SyntaxError, RecursionError, zlib.error):
            yield f"{where} cannot be unpacked"
            continue
        if there is None:
            yield f"{where} without its round"
        elif name == "traffic" and (array.ndim != 2 or array.sum(axis=0).tolist() != sent):
            yield f"{where} does not add up to what the round has sent"


def _of_bytes(connection: Connection) -> Iterator[str]:
    """Bytes are those of the numbers that were sent."""
    r = RoundRow
    sizes = {}
    for number, text in connection.execute(_plain(RunRow, "id", "spec")):
        try:
            sizes[number] = _BYTES.get(json.loads(text)["train"]["dtype"], 4)
        except (ValueError, TypeError, KeyError, RecursionError):
            continue  # told of where specifications are looked at
    wide = [number for number, size in sizes.items() if size != 4]
    word = sa.case((r.run_id.in_(wide), 8), else_=4)
    wrong = sa.or_(r.bytes_up != word * (r.params_up + r.scalars_up), r.bytes_down != word * (r.params_down + r.scalars_down))
    for run, t in connection.execute(select(r.run_id, r.round).where(wrong)):
        if run in sizes:
            yield f"run {run}, round {t}: its bytes are not those of the parameters and scalars sent"


def _of_numbers(connection: Connection) -> Iterator[str]:
    """No number that is still to be given out is there already."""
    if connection.dialect.name != "sqlite":
        return
    rows = connection.exec_driver_sql(f"SELECT seq FROM {numbering.KEPT_IN} WHERE name = 'run'").scalars().all()
    last = connection.scalar(select(func.max(RunRow.id))) or 0
    if len(rows) > 1 or (last and not rows) or any(not isinstance(seq, int) or seq < last for seq in rows):
        yield f"run {last}: the table {numbering.KEPT_IN} would give its number, or one before it, out again"


_COPIES = ("dataset", "model", "scheme", "partition_label", "clients", "join_ratio", "rounds", "method", "seed")
_RULES: tuple[Callable[[Connection], Iterator[str]], ...] = (
    _refused, _of_specifications, _of_environments, _of_partitions, _of_rounds,
    _of_clients, _of_series, _of_arrays, _of_bytes, _of_numbers,
)  # fmt: skip


def _plain(model: type[Base], *names: str) -> sa.Select[Any]:
    """Columns with JSON as the text that it is: it may be none."""
    columns = cast("Mapping[str, sa.Column[Any]]", model.__table__.c)
    return select(*(sa.cast(columns[n], sa.Text) if isinstance(columns[n].type, sa.JSON) else columns[n] for n in names))
