"""Writes runs and their rounds. A function that takes an engine makes one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from pflbench.errors import UserError
from pflbench.plain import without_passwords
from pflbench.spec import RunSpec
from pflbench.store import arrays, paths
from pflbench.store.database import inserted, reading, retry_insert, writing
from pflbench.store.schema import ArtifactRow, Base, ClientRoundRow, NewClientRow, RoundRow, RunRow, SeriesRow, copies

_MESSAGE_LENGTH = 1000

# SQLAlchemy compiles and the driver prepares a statement once, as long as the same object is executed.
_INSERT = {name: insert(Base.metadata.tables[name]) for name in ("round", "client_round", "new_client", "series", "artifact")}
_ROUND_COLUMNS = tuple(column.name for column in RoundRow.__table__.columns if column.name != "run_id")

Rows = Mapping[str, list[dict[str, Any]]]  # by table


@dataclass(frozen=True)
class RoundRecord:
    """The state after `round` rounds and what round `round` cost; meanings and units as in `schema.RoundRow`.

    None: not measured. `clients`, `correct`, `total` and `loss` are aligned arrays [evaluated clients],
    int64 but for `loss` (float64, summed cross-entropy over the client's test samples); all four or none of them.
    """

    round: int
    accuracy: float | None = None
    accuracy_mean: float | None = None
    accuracy_std: float | None = None
    test_loss: float | None = None
    train_loss: float | None = None
    participants: int | None = None
    seconds_receive: float | None = None
    seconds_update: float | None = None
    seconds_evaluate: float | None = None
    params_up: int | None = None
    params_down: int | None = None
    scalars_up: int | None = None
    scalars_down: int | None = None
    bytes_up: int | None = None
    bytes_down: int | None = None
    peak_memory: int | None = None
    val_accuracy: float | None = None
    val_loss: float | None = None
    seconds_simulated: float | None = None
    flops: int | None = None
    clients: NDArray[Any] | None = None
    correct: NDArray[Any] | None = None
    total: NDArray[Any] | None = None
    loss: NDArray[Any] | None = None
    val_correct: NDArray[Any] | None = None  # these three are of the validation samples; all or none of them
    val_total: NDArray[Any] | None = None
    val_client_loss: NDArray[Any] | None = None
    new_clients: Sequence[Mapping[str, Any]] = ()  # columns of `schema.NewClientRow` but for run and round
    series: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # name -> accuracy, test loss
    artifacts: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def create_run(engine: Engine, spec: RunSpec, environment: dict[str, Any], *, whole: bool = False) -> int:
    """Stores a run as the next attempt of its key, with status "queued"; returns its id. whole: keep its paths as they are."""
    attempt = select(func.coalesce(func.max(RunRow.attempt), 0) + 1).where(RunRow.key == spec.key).scalar_subquery()
    plain = spec.model_dump(mode="json")
    values = {
        "key": spec.key,
        "attempt": attempt,
        "protocol": spec.protocol,
        "spec": plain if whole else paths.in_spec(plain, lambda path: paths.kept_or_named(path, engine.url)),
        "environment": environment,
        **copies(spec),
    }

    def add() -> int:
        with writing(engine) as connection:
            return inserted(connection, insert(RunRow).values(values))

    return retry_insert(add)


def update_run(engine: Engine, run_id: int, /, **columns: Any) -> None:
    """Sets columns of a run: status, message, started_at, finished_at, parameters, engine, device, partition_id, ...

    Raises UserError if there is no such run.
    """
    with writing(engine) as connection:
        update_row(connection, run_id, columns)


def update_row(connection: Connection, run_id: int, columns: Mapping[str, Any]) -> None:
    """As `update_run`, in the transaction of `connection`."""
    values = dict(columns)
    if values.get("message"):
        # PostgreSQL stores no null characters.
        values["message"] = without_passwords(values["message"].replace("\0", ""))[:_MESSAGE_LENGTH]
    _require(connection.execute(update(RunRow).where(RunRow.id == run_id).values(values)).rowcount, run_id)


def rows_of(run_id: int, record: RoundRecord) -> Rows:
    """The rows of a round by table: the round, its clients, new clients, series and artifacts.

    Raises ValueError if the arrays of clients differ in length, or a value is NaN (SQLite would store it as null).
    """
    row = {name: getattr(record, name) for name in _ROUND_COLUMNS}
    if nan := [name for name, value in row.items() if value != value]:
        raise ValueError(f"round {record.round}: NaN in {nan}")
    if record.loss is not None and np.isnan(record.loss).any():
        raise ValueError(f"round {record.round}: a client's loss is NaN")
    if any(row["loss"] != row["loss"] for row in record.new_clients):
        raise ValueError(f"round {record.round}: a new client's loss is NaN")
    at = {"run_id": run_id, "round": record.round}
    columns = {"client": record.clients, "correct": record.correct, "total": record.total, "loss": record.loss}
    columns |= {"val_correct": record.val_correct, "val_total": record.val_total, "val_loss": record.val_client_loss}
    measured = {name: array.tolist() for name, array in columns.items() if array is not None}
    return {
        "round": [{**row, **at}],
        "client_round": [{**at, **dict(zip(measured, row, strict=True))} for row in zip(*measured.values(), strict=True)],
        "new_client": [{**at, **row} for row in record.new_clients],
        "series": [{**at, "name": name, "accuracy": a, "test_loss": loss} for name, (a, loss) in record.series.items()],
        "artifact": [arrays.row(run_id, name, record.round, array) for name, array in record.artifacts.items()],
    }


def insert_rows(connection: Connection, rows: Rows) -> None:
    """Inserts the rows of `rows_of`."""
    for table, of_table in rows.items():
        if of_table:
            connection.execute(_INSERT[table], of_table)


def whole_rounds(engine: Engine, run_id: int) -> int:
    """The number of a run's stored rounds before the first missing one."""
    with reading(engine) as connection:
        stored = connection.scalars(select(RoundRow.round).where(RoundRow.run_id == run_id).order_by(RoundRow.round)).all()
    return next((t for t, round in enumerate(stored) if t != round), len(stored))


def has_round(connection: Connection, run_id: int, round: int, **measured: float | None) -> bool:
    """Whether the round is stored. measured: values that its row must have."""
    query = select(RoundRow.round).filter_by(run_id=run_id, round=round, **measured)
    return connection.execute(query).first() is not None


def delete_rounds(connection: Connection, run_id: int, last_round: int) -> None:
    """Deletes all rounds after `last_round` (-1: all), so that a run can go on from an older checkpoint."""
    for table in (ClientRoundRow, NewClientRow, SeriesRow, ArtifactRow, RoundRow):
        connection.execute(delete(table).where(table.run_id == run_id, table.round > last_round))


def remove_run(engine: Engine, run_id: int) -> None:
    """Deletes a run with all its rounds, but not its partition, which others may share. Raises UserError if there is none."""
    with writing(engine) as connection:
        _require(connection.execute(delete(RunRow).where(RunRow.id == run_id)).rowcount, run_id)


def _require(rows: int, run_id: int) -> None:
    if rows == 0:
        raise UserError(f"There is no run {run_id}.", "`pflbench runs list` shows all runs.")
