"""Exports runs, rounds and clients as CSV, JSON or Parquet, in chunks: no table is in memory as a whole."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

from pydantic_core import to_json
from sqlalchemy import JSON, Double, Engine, func, select, type_coerce

from pflbench.plain import in_csv, privately
from pflbench.store import measures
from pflbench.store.arrays import nan_to_none, unpack_array
from pflbench.store.database import reading
from pflbench.store.runs import RoundRule, counted
from pflbench.store.schema import ArtifactRow, ClientRoundRow, NewClientRow, PartitionRow, RoundRow, RunRow

CHUNK = 50_000  # rows: some 20 MB
Values = Sequence[Any]

_IDENTITY = (RunRow.id.label("run"), RunRow.method, RunRow.dataset, RunRow.partition_label.label("partition"), RunRow.seed)
_ROUND_FIRST = (
    *("round", "accuracy", "train_loss", "seconds_receive", "seconds_update", "seconds_evaluate"),
    *("params_up", "params_down"),
)


@dataclass(frozen=True)
class Rows:
    """columns: the name and Python type of each; dict stands for JSON. chunks: the rows, in the order of the columns."""

    columns: dict[str, type]
    chunks: Iterator[list[Values]]


def rows(engine: Engine, kind: str, runs: Collection[int] | None = None) -> Rows:
    """The rows of a kind, one of KINDS, of these runs (None: all), by run, round and client. They are read lazily."""
    query = KINDS[kind]
    if runs is not None:
        query = query.where(RunRow.id.in_(runs))
    if kind == "measures":
        numbers = {name.replace("-", "_"): float for name in measures.COLUMNS}
        columns = {c.name: c.type.python_type for c in _IDENTITY} | {"round": int, "client": int} | numbers
        return Rows(columns, _of_arrays(engine, query))
    columns = {c.name: dict if isinstance(c.type, JSON) else c.type.python_type for c in query.selected_columns}
    return Rows(columns, _chunks(engine, query))


def write(found: Rows, format: str, out: IO[bytes]) -> int:
    """Writes the rows in one of FORMATS; returns how many there were. Accuracies are fractions, as they are stored."""
    written = 0

    def chunks() -> Iterator[list[Values]]:
        nonlocal written
        for chunk in found.chunks:
            yield chunk
            written += len(chunk)

    FORMATS[format](Rows(found.columns, chunks()), out)
    return written


def _runs() -> Any:
    best, best_round, _ = counted(RoundRule())
    last = select(func.max(RoundRow.round)).where(RoundRow.run_id == RunRow.id).scalar_subquery()
    return (
        select(
            *_IDENTITY,
            RunRow.key,
            RunRow.attempt,
            RunRow.protocol,
            RunRow.status,
            RunRow.message,
            RunRow.spec["method"]["version"].as_integer().label("version"),
            RunRow.spec["method"]["hyperparameters"].label("hyperparameters"),
            RunRow.model,
            RunRow.parameters,
            PartitionRow.hash.label("partition_hash"),
            RunRow.clients,
            RunRow.join_ratio,
            RunRow.rounds,
            last.label("last_round"),
            best.label("best_accuracy"),
            best_round.label("best_round"),
            RunRow.engine,
            RunRow.device,
            RunRow.environment["commit"].as_string().label("commit"),
            RunRow.created_at,
            RunRow.started_at,
            RunRow.finished_at,
            RunRow.spec,
        )
        .join(PartitionRow, RunRow.partition_id == PartitionRow.id, isouter=True)
        .order_by(RunRow.id)
    )


def _rounds() -> Any:
    rest = [column.name for column in RoundRow.__table__.columns if column.name not in ("run_id", *_ROUND_FIRST)]
    _, *columns = (getattr(RoundRow, name) for name in (*_ROUND_FIRST, *rest))
    return _of(RoundRow, [RoundRow.round], *columns)


def _of(table: Any, keys: Sequence[Any], *columns: Any) -> Any:
    """The rows of a table, each with its run, in the order of its keys."""
    return select(*_IDENTITY, *keys, *columns).join(table, table.run_id == RunRow.id).order_by(RunRow.id, *keys)


def _accuracy(table: Any) -> Any:
    return type_coerce(table.correct * 1.0 / func.nullif(table.total, 0), Double).label("accuracy")


def _of_arrays(engine: Engine, query: Any) -> Iterator[list[Values]]:
    """A row without a client for each run and round, and one for each client that was tested; null: not defined."""
    with reading(engine) as c:
        for *identity, dtype, shape, data in c.execution_options(yield_per=100).execute(query):
            values = nan_to_none(unpack_array(data, dtype, shape))
            tested = (k for k, row in enumerate(values) if k == 0 or any(value is not None for value in row))
            yield [(*identity, None if k == 0 else k - 1, *values[k]) for k in tested]


def _chunks(engine: Engine, query: Any) -> Iterator[list[Values]]:
    with reading(engine) as c:
        for part in c.execution_options(yield_per=CHUNK).execute(query).partitions():
            yield [tuple(_shown(value) if isinstance(value, str | dict) else value for value in row) for row in part]


_shown_text = lru_cache(1000)(privately)


def _shown(value: Any) -> Any:
    """The value without hosts, users and paths of the machine."""
    return _shown_text(value) if isinstance(value, str) else privately(value)


def _csv(found: Rows, out: IO[bytes]) -> None:
    writer = csv.writer(codecs.getwriter("utf-8")(out), lineterminator="\n")
    writer.writerow(found.columns)
    for chunk in found.chunks:
        rows = _plain(found.columns, chunk)
        writer.writerows([in_csv(value) if isinstance(value, str) else value for value in row] for row in rows)


def _json(found: Rows, out: IO[bytes]) -> None:
    """An array with one object per line. JSON has no infinity: it becomes null."""
    before = b"[\n"
    for chunk in found.chunks:
        records = (dict(zip(found.columns, values, strict=True)) for values in chunk)
        out.write(before + b",\n".join(to_json(record, inf_nan_mode="null") for record in records))
        before = b",\n"
    out.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _parquet(found: Rows, out: IO[bytes]) -> None:
    """Columns of JSON become text."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {int: pa.int64(), float: pa.float64(), str: pa.string(), dict: pa.string()}
    schema = pa.schema([(name, types[kind]) for name, kind in found.columns.items()])
    with parquet.ParquetWriter(out, schema) as writer:
        for chunk in found.chunks:
            columns = zip(*_plain(found.columns, chunk), strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _plain(columns: dict[str, type], chunk: list[Values]) -> list[Values]:
    """The rows with JSON columns as text."""
    nested = {i for i, kind in enumerate(columns.values()) if kind is dict}
    if not nested:
        return chunk
    return [[json.dumps(v, ensure_ascii=False) if i in nested else v for i, v in enumerate(values)] for values in chunk]


_C, _N, _A = ClientRoundRow, NewClientRow, ArtifactRow
KINDS: dict[str, Any] = {
    "runs": _runs(),
    "rounds": _rounds(),
    "clients": _of(_C, [_C.round, _C.client], _C.correct, _C.total, _accuracy(_C), _C.loss),
    "new-clients": _of(_N, [_N.round, _N.client, _N.epochs], _N.correct, _N.total, _accuracy(_N), _N.loss),
    "measures": _of(_A, [_A.round], _A.dtype, _A.shape, _A.data).where(_A.name == measures.NAME),
}
FORMATS: dict[str, Callable[[Rows, IO[bytes]], None]] = {"csv": _csv, "parquet": _parquet, "json": _json}
