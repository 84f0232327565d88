"""Partitions in the database: each is stored once, under its hash."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, insert, select

from pflbench.errors import UserError
from pflbench.store.arrays import Counts
from pflbench.store.database import inserted, reading, retry_insert, writing
from pflbench.store.runs import RunScope
from pflbench.store.schema import PartitionRow, RunRow


@dataclass(frozen=True)
class PartitionRecord:
    """Which client holds which samples: `train` and `test` are sample counts [clients, classes].

    left_out: how many samples no client holds; None: unknown. indices: the arrays train_0, test_0, ..., which are written, and
    read by `read_indices` alone. id: None until it is stored.
    """

    hash: str
    scheme: str
    label: str
    dataset: str
    spec: Mapping[str, Any]
    classes: Sequence[str]
    train: Counts
    test: Counts
    left_out: int | None = None
    indices: Mapping[str, NDArray[Any]] | None = None
    id: int | None = None

    @property
    def counts(self) -> Counts:
        """Of both: [clients, classes]."""
        return self.train + self.test


_QUERY = select(
    PartitionRow.id, PartitionRow.hash, PartitionRow.scheme, PartitionRow.label, PartitionRow.dataset, PartitionRow.spec,
    PartitionRow.classes, PartitionRow.train_counts, PartitionRow.test_counts, PartitionRow.left_out,
)  # fmt: skip


def save(engine: Engine, record: PartitionRecord) -> int:
    """Stores a partition unless one with its hash exists; returns its id. Several processes may do so at once."""
    row = {
        **{name: getattr(record, name) for name in ("hash", "scheme", "label", "dataset", "left_out")},
        "spec": dict(record.spec),
        "clients": len(record.train),
        "classes": list(record.classes),
        "train_counts": record.train.tolist(),
        "test_counts": record.test.tolist(),
        "indices": pack_indices(record.indices) if record.indices is not None else None,
    }

    def add() -> int:
        with writing(engine) as connection:
            return insert_once(connection, row)

    return retry_insert(add)


def insert_once(connection: Connection, row: Mapping[str, Any]) -> int:
    """As `save`, for a row of the table in the transaction of `connection`."""
    known: int | None = connection.scalar(select(PartitionRow.id).where(PartitionRow.hash == row["hash"]))
    return inserted(connection, insert(PartitionRow).values(row)) if known is None else known


def stored(engine: Engine, among: RunScope) -> list[PartitionRecord]:
    """The partitions of these runs in the order in which they were stored; of all runs: also partitions without a run."""
    query = _QUERY.order_by(PartitionRow.id)
    if among.runs is not None:
        query = query.where(PartitionRow.id.in_(select(RunRow.partition_id).where(among.condition)))
    with reading(engine) as c:
        return [_record(row) for row in c.execute(query)]


def find(engine: Engine, text: str) -> PartitionRecord:
    """One partition by its number or (the beginning of) its hash. Raises UserError if none or several match."""
    number = text.isdigit() and len(text) < 8
    wanted = PartitionRow.id == int(text) if number else PartitionRow.hash.startswith(text, autoescape=True)
    with reading(engine) as c:
        rows = c.execute(_QUERY.where(wanted)).all()
    if len(rows) == 1:
        return _record(rows[0])
    if rows:
        raise UserError(f"The hashes of {len(rows)} partitions begin with '{text}'.", "Give more digits of the hash.")
    raise UserError(f"No partition '{text}' in this database.", "`pflbench runs show RUN` names the partition of a run.")


def read_indices(engine: Engine, hash: str) -> dict[str, NDArray[Any]]:
    """The arrays train_0, test_0, ... of the partition with this hash; none if they were not stored."""
    with reading(engine) as c:
        packed = c.scalar(select(PartitionRow.indices).where(PartitionRow.hash == hash))
    return {} if packed is None else unpack_indices(packed)


def pack_indices(indices: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as a compressed .npz."""
    buffer, arrays = io.BytesIO(), dict[str, Any](indices)
    np.savez_compressed(buffer, **arrays)  # allow_pickle, an argument in numpy 2, would be an array in numpy 1
    return buffer.getvalue()


def unpack_indices(data: bytes) -> dict[str, NDArray[Any]]:
    """The inverse of `pack_indices`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _record(row: Any) -> PartitionRecord:
    id, hash, scheme, label, dataset, spec, classes, *counts, left_out = row
    train, test = (np.array(side, dtype=np.int64).reshape(-1, len(classes)) for side in counts)
    return PartitionRecord(hash, scheme, label, dataset, spec, tuple(classes), train, test, left_out, id=id)
