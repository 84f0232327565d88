"""The tables: run -> round -> client_round, with partition, series, artifact and references beside them.

Rows of `round` and `client_round` are written once per round in one transaction and never changed. Nothing derived is stored:
which round counts as a run's result is decided when a table is made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pflbench.spec import RunSpec

ENVIRONMENT_OBJECTS = ("plugin", "notes", "chunk", "steps", "packages", "data", "forced")  # optional, JSON objects
STATUSES = ("queued", "running", "finished", "failed", "diverged", "interrupted")


def now() -> str:
    """UTC, ISO 8601 to the second: sorts as text and reads the same in every database."""
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def text(length: int) -> Any:
    """A text column, ordered by code points: so does SQLite, and PostgreSQL with the collation "C". No length is enforced."""
    return String(length).with_variant(String(collation="C"), "postgresql")


def fraction(*columns: str) -> tuple[CheckConstraint, ...]:
    """From 0 to 1, or null."""
    return tuple(CheckConstraint(f"{column} >= 0 AND {column} <= 1", name=column) for column in columns)


def at_least(least: int, *columns: str) -> tuple[CheckConstraint, ...]:
    """At least `least`, or null."""
    return tuple(CheckConstraint(f"{column} >= {least}", name=column) for column in columns)


class Base(DeclarativeBase):
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double}  # SQLAlchemy 2.0 would take Float, 2.1 takes Double
    # SQLite alters a table by copying it, and can only drop or change a constraint that has a name.
    metadata = MetaData(
        naming_convention={
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class PartitionRow(Base):
    """Which client holds which samples. `indices` is a compressed .npz (a zip) of train_0, test_0, train_1, ..."""

    __tablename__ = "partition"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(text(64), unique=True)  # of the index lists and the labels behind them
    scheme: Mapped[str] = mapped_column(text(32))
    label: Mapped[str] = mapped_column(text(64))  # "Dir(0.1)"
    dataset: Mapped[str] = mapped_column(text(255))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    clients: Mapped[int]
    classes: Mapped[list[str]] = mapped_column(JSON)  # class names, in label order
    train_counts: Mapped[list[list[int]]] = mapped_column(JSON)  # [client][class]
    test_counts: Mapped[list[list[int]]] = mapped_column(JSON)
    left_out: Mapped[int | None]  # samples that no client holds; null: unknown
    indices: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[str] = mapped_column(text(20), default=now)


class RunRow(Base):
    """One run of one specification. A forced repetition has the same key and the next attempt number."""

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("key", "attempt"),
        Index("ix_run_protocol", "protocol"),
        Index("ix_run_method_dataset", "method", "dataset"),
        CheckConstraint(f"status IN ({', '.join(map(repr, STATUSES))})", name="status"),
        CheckConstraint("join_ratio > 0 AND join_ratio <= 1", name="join_ratio"),
        *at_least(1, "attempt", "clients", "rounds"),
        *at_least(0, "seed", "parameters"),
        {"sqlite_autoincrement": True},  # a removed run's number is never reused, so that its process writes to no other run
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(text(16))
    attempt: Mapped[int] = mapped_column(default=1)
    protocol: Mapped[str] = mapped_column(text(16))
    status: Mapped[str] = mapped_column(text(16), default="queued")
    message: Mapped[str | None] = mapped_column(text(1000))  # why it failed or diverged
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)  # RunSpec, complete
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)  # commit, package versions, device, executor, command

    # Copied from the specification, for queries.
    dataset: Mapped[str] = mapped_column(text(255))
    model: Mapped[str] = mapped_column(text(64))
    scheme: Mapped[str] = mapped_column(text(32))
    partition_label: Mapped[str] = mapped_column(text(64))
    clients: Mapped[int]
    join_ratio: Mapped[float]
    rounds: Mapped[int]
    method: Mapped[str] = mapped_column(text(64))
    seed: Mapped[int] = mapped_column(Integer().with_variant(BigInteger, "postgresql"))  # SQLite's integers are that large

    parameters: Mapped[int | None]  # of one model: the paper's Sigma
    engine: Mapped[str | None] = mapped_column(text(16))
    device: Mapped[str | None] = mapped_column(text(128))
    partition_id: Mapped[int | None] = mapped_column(ForeignKey("partition.id"))
    created_at: Mapped[str] = mapped_column(text(20), default=now)
    started_at: Mapped[str | None] = mapped_column(text(20))
    finished_at: Mapped[str | None] = mapped_column(text(20))


def copies(spec: RunSpec) -> dict[str, Any]:
    """The columns of `run` that are copied from its specification."""
    return {
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


def is_environment(plain: Any) -> bool:
    """Whether stored JSON may be a run's environment, of any version."""
    return isinstance(plain, dict) and all(isinstance(plain.get(entry, {}), dict) for entry in ENVIRONMENT_OBJECTS)


class RoundRow(Base):
    """State after `round` rounds (0 is the initial model), and the costs of round `round`. Null: not measured.

    accuracy is pooled over the evaluated clients, sum of correct / sum of total (methods.md 2.1), in [0, 1].
    """

    __tablename__ = "round"
    __table_args__ = (
        Index("ix_round_run_accuracy", "run_id", "accuracy"),
        *fraction("accuracy", "accuracy_mean", "accuracy_std", "val_accuracy"),
        *at_least(
            0, "round", "participants", "seconds_receive", "seconds_update", "seconds_evaluate", "seconds_simulated", "flops"
        ),
        *at_least(0, "params_up", "params_down", "scalars_up", "scalars_down", "bytes_up", "bytes_down", "peak_memory"),
        {"sqlite_with_rowid": False},
    )

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    accuracy: Mapped[float | None]
    accuracy_mean: Mapped[float | None]  # unweighted over clients
    accuracy_std: Mapped[float | None]  # population std over clients
    test_loss: Mapped[float | None]  # mean cross-entropy over all evaluated samples
    train_loss: Mapped[float | None]  # mean over the local steps of the round, weighted by clients' sample counts
    participants: Mapped[int | None]
    seconds_receive: Mapped[float | None]
    seconds_update: Mapped[float | None]
    seconds_evaluate: Mapped[float | None]
    params_up: Mapped[int | None] = mapped_column(BigInteger)  # model parameters sent by the cohort's clients together
    params_down: Mapped[int | None] = mapped_column(BigInteger)
    scalars_up: Mapped[int | None] = mapped_column(BigInteger)  # other numbers sent, counted apart (methods.md 1.18)
    scalars_down: Mapped[int | None] = mapped_column(BigInteger)
    bytes_up: Mapped[int | None] = mapped_column(BigInteger)
    bytes_down: Mapped[int | None] = mapped_column(BigInteger)
    peak_memory: Mapped[int | None] = mapped_column(BigInteger)  # bytes: of the GPU, or the process's resident set on a CPU
    val_accuracy: Mapped[float | None]  # as accuracy, on the clients' validation samples (`run --val-share`)
    val_loss: Mapped[float | None]
    seconds_simulated: Mapped[float | None]  # what the round would take the simulated devices and networks of its clients
    flops: Mapped[int | None] = mapped_column(BigInteger)  # of reception and update, all clients together (run.flops)


class ClientRoundRow(Base):
    """One client's test result at E1. A missing row: the client was not evaluated in that round."""

    __tablename__ = "client_round"
    __table_args__ = (
        *at_least(0, "round", "client"),
        CheckConstraint("correct >= 0 AND correct <= total", name="correct"),
        CheckConstraint("val_correct >= 0 AND val_correct <= val_total", name="val_correct"),
        {"sqlite_with_rowid": False},
    )

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    client: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    correct: Mapped[int]
    total: Mapped[int]
    loss: Mapped[float]  # summed cross-entropy over the client's test samples
    val_correct: Mapped[int | None]  # the same on its validation samples; null: the run has none
    val_total: Mapped[int | None]
    val_loss: Mapped[float | None]


class NewClientRow(Base):
    """A client that never joins, tested after it has adapted the model of round `round` for `epochs` epochs."""

    __tablename__ = "new_client"
    __table_args__ = (
        *at_least(0, "round", "client", "epochs"),
        CheckConstraint("correct >= 0 AND correct <= total", name="correct"),
        {"sqlite_with_rowid": False},
    )

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    client: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epochs: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    correct: Mapped[int]
    total: Mapped[int]
    loss: Mapped[float]  # summed cross-entropy over its test samples


class SeriesRow(Base):
    """A second accuracy series of a run, never mixed with the headline: e.g. Ditto's global model."""

    __tablename__ = "series"
    __table_args__ = (*at_least(0, "round"), *fraction("accuracy"), {"sqlite_with_rowid": False})

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(text(32), primary_key=True)
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    accuracy: Mapped[float]
    test_loss: Mapped[float]


class ArtifactRow(Base):
    """A named array that a method stores, such as ALA's epochs and weights. `data` is the zlib-compressed buffer, C order."""

    __tablename__ = "artifact"
    __table_args__ = (UniqueConstraint("run_id", "round", "name"),)  # no checks: SQLite adds one by copying all the arrays

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"))
    round: Mapped[int]
    name: Mapped[str] = mapped_column(text(64))
    dtype: Mapped[str] = mapped_column(text(16))
    shape: Mapped[list[int]] = mapped_column(JSON)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class ReferenceRunRow(Base):
    """A result file of PFLlib. Its protocol is unknown. `times` is its number among repetitions."""

    __tablename__ = "reference_run"

    id: Mapped[int] = mapped_column(primary_key=True)
    hash: Mapped[str] = mapped_column(text(64), unique=True)  # SHA-256 of the file
    file: Mapped[str] = mapped_column(text(255))  # its name without folders
    dataset: Mapped[str] = mapped_column(text(255))  # as run.dataset
    method: Mapped[str] = mapped_column(text(64))  # as run.method, where it is one of ours
    algorithm: Mapped[str] = mapped_column(text(64))  # PFLlib's name for it
    goal: Mapped[str] = mapped_column(text(64))  # PFLlib's name for the experiment
    times: Mapped[int]
    created_at: Mapped[str] = mapped_column(text(20), default=now)


class ReferenceRoundRow(Base):
    """PFLlib's results after `round` rounds, before training goes on: accuracy and AUC in [0, 1] over all clients' test data."""

    __tablename__ = "reference_round"
    __table_args__ = ({"sqlite_with_rowid": False},)

    reference_id: Mapped[int] = mapped_column(
        ForeignKey("reference_run.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    round: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    accuracy: Mapped[float]
    auc: Mapped[float | None]
    train_loss: Mapped[float | None]


class SweepRow(Base):
    """A sweep: the specifications of its runs, in the order in which they are trained."""

    __tablename__ = "sweep"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(text(64), unique=True)
    specs: Mapped[list[dict[str, Any]]] = mapped_column(JSON)  # RunSpecs
    environment: Mapped[dict[str, Any]] = mapped_column(JSON)  # the command, its options of execution, plug-ins, the file's text
    cancelled_at: Mapped[str | None] = mapped_column(text(20))
    created_at: Mapped[str] = mapped_column(text(20), default=now)
