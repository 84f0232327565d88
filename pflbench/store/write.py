"""Everything that changes the database. Each function is one transaction; none leaves half of its work behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from pflbench.errors import UserError
from pflbench.spec import RunSpec
from pflbench.store.db import friendly, writing
from pflbench.store.records import PartitionRecord, RoundRecord, RunRow, pack_array, pack_indices
from pflbench.store.schema import STATUSES, Artifact, Base, ClientRound, Partition, Round, Run, Series

_MESSAGE_LENGTH = 1000
_FIXED = {"id", "key", "attempt", "protocol", "spec"}

# Compiled once by SQLAlchemy and prepared once by the driver, as long as it is the same object that is executed.
_INSERT_ROUND = insert(Base.metadata.tables["round"])
_INSERT_CLIENTS = insert(Base.metadata.tables["client_round"])
_INSERT_SERIES = insert(Base.metadata.tables["series"])
_INSERT_ARTIFACTS = insert(Base.metadata.tables["artifact"])
_ROUND_COLUMNS = tuple(column.name for column in Round.__table__.columns if column.name != "run_id")


def find_run(engine: Engine, key: str) -> RunRow | None:
    """The newest attempt of the run with this key, None if there is none."""
    last = select(func.max(Round.round)).where(Round.run_id == Run.id).scalar_subquery()
    columns = [getattr(Run, name) for name in RunRow.__dataclass_fields__ if name != "last_round"]
    query = select(*columns, last.label("last_round")).where(Run.key == key).order_by(Run.attempt.desc()).limit(1)
    with friendly(engine.url), engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    return RunRow(**row) if row is not None else None


def create_run(engine: Engine, spec: RunSpec, environment: dict[str, Any]) -> int:
    """Stores a run as "queued", as the next attempt of its key; returns its id."""
    attempt = select(func.coalesce(func.max(Run.attempt), 0) + 1).where(Run.key == spec.key).scalar_subquery()
    values = {
        "key": spec.key,
        "attempt": attempt,
        "protocol": spec.protocol,
        "spec": spec.model_dump(mode="json"),
        "environment": environment,
        "dataset": spec.data.label,
        "model": spec.model,
        "scheme": spec.partition.scheme,
        "partition_label": spec.partition.label,
        "clients": spec.partition.clients,
        "join_ratio": spec.train.join_ratio,
        "rounds": spec.train.rounds,
        "method": spec.method.name,
        "seed": spec.seed,
    }
    with writing(engine) as connection:
        return _inserted(connection, insert(Run).values(values))


def update_run(engine: Engine, run_id: int, /, **columns: Any) -> None:
    """Sets columns of a run: status, message, started_at, finished_at, parameters, engine, device, partition_id, ...

    Raises:
        ValueError: an unknown or fixed column, an unknown status.
        UserError: no such run.
    """
    wrong = columns.keys() - (set(Run.__table__.columns.keys()) - _FIXED)
    if wrong or not columns:
        raise ValueError(f"update_run cannot set {sorted(wrong)}")
    if columns.get("status", STATUSES[0]) not in STATUSES:
        raise ValueError(f"unknown status {columns['status']!r}; valid: {', '.join(STATUSES)}")
    if columns.get("message"):
        columns["message"] = columns["message"][:_MESSAGE_LENGTH]
    with writing(engine) as connection:
        _require(connection.execute(update(Run).where(Run.id == run_id).values(columns)).rowcount, run_id)


def save_partition(engine: Engine, record: PartitionRecord) -> int:
    """Stores a partition unless one with its hash is there; returns its id. Several processes may do it at once."""
    found = select(Partition.id).where(Partition.hash == record.hash)
    train, test = np.asarray(record.train_counts), np.asarray(record.test_counts)
    values = {
        "hash": record.hash,
        "scheme": record.scheme,
        "label": record.label,
        "dataset": record.dataset,
        "spec": dict(record.spec),
        "clients": len(train),
        "classes": list(record.classes),
        "train_counts": train.tolist(),
        "test_counts": test.tolist(),
        "indices": pack_indices(record.indices) if record.indices is not None else None,
        "left_out": record.left_out,
    }
    try:
        with writing(engine) as connection:
            known = connection.execute(found).scalar()
            if known is None:
                return _inserted(connection, insert(Partition).values(values))
            unknown = update(Partition).where(Partition.id == known, Partition.left_out.is_(None))
            connection.execute(unknown.values(left_out=record.left_out))
            return int(known)
    except IntegrityError:  # a database without SQLite's single writer: another process was faster
        with writing(engine) as connection:
            return int(connection.execute(found).scalar_one())


def write_round(engine: Engine, run_id: int, record: RoundRecord) -> None:
    """Stores a round with all its clients, series and artifacts: all of it, or on an error nothing.

    Raises:
        ValueError: the client arrays do not match, or a value is NaN (which SQLite would store as "not measured").
        UserError: the disk is full, the database locked or read-only.
    """
    row = {name: getattr(record, name) for name in _ROUND_COLUMNS}
    clients = _client_rows(run_id, record)
    if any(value != value for value in row.values()):
        raise ValueError(f"round {record.round}: NaN in {[name for name, value in row.items() if value != value]}")
    with writing(engine) as connection:
        connection.execute(_INSERT_ROUND, row | {"run_id": run_id})
        if clients:
            connection.execute(_INSERT_CLIENTS, clients)
        if record.series:
            connection.execute(_INSERT_SERIES, _series_rows(run_id, record))
        if record.artifacts:
            connection.execute(_INSERT_ARTIFACTS, _artifact_rows(run_id, record))


def rewind(engine: Engine, run_id: int, last_round: int) -> None:
    """Deletes what was stored after `last_round` (-1: everything), for a run to go on from an older checkpoint."""
    with writing(engine) as connection:
        for table in (ClientRound, Series, Artifact, Round):
            connection.execute(delete(table).where(table.run_id == run_id, table.round > last_round))


def remove_run(engine: Engine, run_id: int) -> None:
    """Deletes a run with all its rounds. Its partition stays: other runs may share it.

    Raises:
        UserError: no such run.
    """
    with writing(engine) as connection:
        _require(connection.execute(delete(Run).where(Run.id == run_id)).rowcount, run_id)


def _client_rows(run_id: int, record: RoundRecord) -> list[dict[str, Any]]:
    arrays = (record.clients, record.correct, record.total, record.loss)
    if all(array is None for array in arrays):
        return []
    if any(array is None for array in arrays) or len({len(array) for array in arrays if array is not None}) != 1:
        raise ValueError(f"round {record.round}: clients, correct, total and loss must be aligned")
    assert record.loss is not None
    if np.isnan(record.loss).any():
        raise ValueError(f"round {record.round}: a client's loss is NaN")
    columns = [array.tolist() for array in arrays if array is not None]
    return [
        {"run_id": run_id, "round": record.round, "client": client, "correct": correct, "total": total, "loss": loss}
        for client, correct, total, loss in zip(*columns, strict=True)
    ]


def _series_rows(run_id: int, record: RoundRecord) -> list[dict[str, Any]]:
    return [
        {"run_id": run_id, "name": name, "round": record.round, "accuracy": accuracy, "test_loss": loss}
        for name, (accuracy, loss) in record.series.items()
    ]


def _artifact_rows(run_id: int, record: RoundRecord) -> list[dict[str, Any]]:
    return [
        {
            "run_id": run_id,
            "round": record.round,
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "data": pack_array(array),
        }
        for name, array in record.artifacts.items()
    ]


def _inserted(connection: Connection, statement: Any) -> int:
    key = connection.execute(statement).inserted_primary_key
    assert key is not None
    return int(key[0])


def _require(rows: int, run_id: int) -> None:
    if rows == 0:
        raise UserError(f"There is no run {run_id}.", "`pflbench runs list` shows all runs.")
