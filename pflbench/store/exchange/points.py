"""Runs in the form that experiment trackers take: metrics by round, parameters, tags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, func, select

from pflbench.store.database import reading
from pflbench.store.runs import Run
from pflbench.store.schema import RoundRow, SeriesRow

_CHUNK = 2_000  # rounds: some megabytes
_PHASES = (RoundRow.seconds_receive, RoundRow.seconds_update, RoundRow.seconds_evaluate)
_METRICS = [column for column in RoundRow.__table__.columns if column.name not in ("run_id", "round")]


@dataclass(frozen=True)
class TrackedRound:
    """One round. time: its end in seconds since 1970, computed as the run's start plus the seconds of all phases so far.

    values: the measured columns of `round` by name; `seconds`, the sum over all rounds so far without evaluation; and
    `NAME/accuracy` and `NAME/test_loss` of each second series NAME.
    """

    round: int
    time: float
    values: dict[str, float]


def points(engine: Engine, run: Run, after: int) -> Iterator[list[TrackedRound]]:
    """The rounds of a run after round `after` (-1: all) in ascending order, in chunks."""
    started = began(run)
    receive, update, evaluate = (func.coalesce(column, 0.0) for column in _PHASES)
    training, all_phases = (
        func.sum(what).over(order_by=RoundRow.round, rows=(None, 0)) for what in (receive + update, receive + update + evaluate)
    )
    so_far = select(RoundRow.round, *_METRICS, training.label("seconds"), all_phases.label("spent"))
    inner = so_far.where(RoundRow.run_id == run.id).subquery()
    query = select(inner).where(inner.c.round > after).order_by(inner.c.round)
    with reading(engine) as c:
        for part in c.execution_options(yield_per=_CHUNK).execute(query).mappings().partitions():
            second = _second_series(engine, run.id, part[0]["round"], part[-1]["round"])
            found = []
            for row in part:
                values = {k: v for k, v in row.items() if k not in ("round", "spent") and v is not None}
                found.append(TrackedRound(row["round"], started + row["spent"], values | second[row["round"]]))
            yield found


def parameters(run: Run) -> dict[str, Any]:
    """The flat specification: {"partition.beta": 0.1, "method.hyperparameters.p": 1, ...}, without nulls."""
    return {name: value for name, value in flat(run.spec) if value is not None}


def tags(run: Run) -> dict[str, str]:
    """Key, attempt, method, dataset, partition and seed."""
    named = {"key": run.key, "attempt": run.attempt, "method": run.method, "dataset": run.dataset}
    return {name: str(value) for name, value in {**named, "partition": run.partition_label, "seed": run.seed}.items()}


def title(run: Run) -> str:
    """A title that is unique in the database."""
    again = f" attempt {run.attempt}" if run.attempt > 1 else ""
    return f"{run.method} {run.dataset} {run.partition_label} seed {run.seed} {run.key}{again}"


def began(run: Run) -> float:
    """The start of a run in seconds since 1970."""
    return timestamp(run.started_at or run.created_at)


def timestamp(text: str) -> float:
    """A stored time in seconds since 1970."""
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"train": {"lr": 0.1}} -> ("train.lr", 0.1)."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flat(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def _second_series(engine: Engine, run_id: int, first: int, last: int) -> dict[int, dict[str, float]]:
    query = select(SeriesRow.round, SeriesRow.name, SeriesRow.accuracy, SeriesRow.test_loss)
    found: dict[int, dict[str, float]] = defaultdict(dict)
    with reading(engine) as c:
        for row in c.execute(query.where(SeriesRow.run_id == run_id, SeriesRow.round.between(first, last))):
            found[row.round] |= {f"{row.name}/accuracy": row.accuracy, f"{row.name}/test_loss": row.test_loss}
    return found
