"""The reading side of the database: small functions that return dataclasses and arrays.

Accuracies are fractions in [0, 1] here, as stored; reports turn them into percent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute

from pflbench.errors import UserError, unknown
from pflbench.spec import OTHER_CONTENT
from pflbench.store.db import friendly
from pflbench.store.locks import UNDER_WAY, present
from pflbench.store.only import visible, visible_partition
from pflbench.store.records import unpack_array
from pflbench.store.schema import STATUSES, Artifact, ClientRound, Partition, Round, Run, Series

Counts = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Select:
    """A run's result (methods.md 2.1): its best evaluated round, its last, or the mean of its `last` last ones."""

    rule: Literal["best", "last", "mean-last"] = "best"
    last: int = 1

    def __str__(self) -> str:
        return f"mean-last:{self.last}" if self.rule == "mean-last" else self.rule


@dataclass(frozen=True)
class RunInfo:
    """One line of a list of runs. `best` is the highest accuracy of any round so far."""

    id: int
    key: str
    attempt: int
    status: str
    method: str
    dataset: str
    model: str
    partition: str
    clients: int
    rounds: int
    seed: int
    last_round: int | None
    best: float | None
    device: str | None
    created_at: str
    finished_at: str | None
    message: str | None


@dataclass(frozen=True)
class PartitionInfo:
    """A partition without its index lists; `train` and `test` are sample counts [clients, classes]."""

    id: int
    hash: str
    scheme: str
    label: str
    dataset: str
    spec: dict[str, Any]
    classes: tuple[str, ...]
    train: Counts
    test: Counts
    left_out: int | None = None


@dataclass(frozen=True)
class ArtifactInfo:
    name: str
    round: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RunDetail:
    """Everything about one run but the bulk. `last_rounds` are rows of the table `round`, oldest first."""

    info: RunInfo
    protocol: str
    spec: dict[str, Any]
    environment: dict[str, Any]
    parameters: int | None
    partition: PartitionInfo | None
    last_rounds: tuple[dict[str, Any], ...]
    series: tuple[str, ...]
    artifacts: tuple[ArtifactInfo, ...]


@dataclass(frozen=True)
class Result:
    """What one run counts for: the mean of `used` rounds up to `round`; None without an evaluated round."""

    id: int
    key: str
    attempt: int
    protocol: str
    status: str
    method: str
    dataset: str
    seed: int
    spec: dict[str, Any]
    partition_label: str  # "Dir(0.1)"
    partition: str | None  # hash
    value: float | None
    round: int | None
    used: int


@dataclass(frozen=True)
class Curve:
    """Accuracy at the evaluated rounds; `seconds` is the training time up to each (receive + update), if asked for."""

    round: Integers
    accuracy: Floats
    seconds: Floats | None = None


@dataclass(frozen=True)
class Clients:
    """Test results per evaluated client after `round` rounds. `loss` is summed over the client's test samples."""

    round: int
    client: Integers
    correct: Integers
    total: Integers
    loss: Floats


def distinct(engine: Engine, column: Literal["method", "dataset"]) -> list[str]:
    """The methods or datasets for which there are runs, sorted."""
    chosen: InstrumentedAttribute[str] = getattr(Run, column)
    with reading(engine) as c:
        return list(c.scalars(select(chosen).where(visible(engine)).distinct().order_by(chosen)))


def runs(
    engine: Engine,
    *,
    method: str | None = None,
    dataset: str | None = None,
    status: str | None = None,
    key: str | None = None,
    limit: int | None = None,
) -> list[RunInfo]:
    """Runs, newest first; none is an empty list. `key` may be the beginning of one, `dataset` a label or its name alone."""
    if status is not None and status not in STATUSES:
        raise unknown("status", status, STATUSES)
    query = _info_query().order_by(Run.id.desc())
    if method is not None:
        query = query.where(Run.method == method)
    if dataset is not None:
        query = query.where((Run.dataset == dataset) | Run.dataset.startswith(dataset + OTHER_CONTENT, autoescape=True))
    if key is not None:
        query = query.where(Run.key.startswith(key, autoescape=True))
    if status is not None:
        query = query.where(Run.status.in_({status, *(UNDER_WAY if status == "interrupted" else ())}))
    with reading(engine) as c:
        found = (_info(engine, row) for row in c.execute(query))
        return list(islice((info for info in found if status in (None, info.status)), limit))


def run(engine: Engine, id_or_key: int | str, *, last: int = 10) -> RunDetail:
    """One run by number, or the newest attempt of a key or of a key's beginning. UserError if none or several fit."""
    run_id = _find(engine, str(id_or_key))
    with reading(engine) as c:
        info = _info(engine, c.execute(_info_query().where(Run.id == run_id)).one())
        columns = (Run.protocol, Run.spec, Run.environment, Run.parameters, Run.partition_id)
        protocol, spec, environment, parameters, partition_id = c.execute(select(*columns).where(Run.id == run_id)).one()
        newest = select(Round.__table__).where(Round.run_id == run_id).order_by(Round.round.desc()).limit(last)
        rounds = [dict(row) for row in c.execute(newest).mappings()]
        names = c.scalars(select(Series.name).where(Series.run_id == run_id).distinct().order_by(Series.name))
        series = tuple(names)
        held = select(Artifact.name, Artifact.round, Artifact.dtype, Artifact.shape).where(Artifact.run_id == run_id)
        artifacts = c.execute(held.order_by(Artifact.name, Artifact.round)).all()
    return RunDetail(
        info=info,
        protocol=protocol,
        spec=spec,
        environment=environment,
        parameters=parameters,
        partition=None if partition_id is None else partition(engine, partition_id),
        last_rounds=tuple(reversed(rounds)),
        series=series,
        artifacts=tuple(ArtifactInfo(name, r, dtype, tuple(shape)) for name, r, dtype, shape in artifacts),
    )


def results(
    engine: Engine,
    chosen: Select,
    *,
    methods: Collection[str] | None = None,
    datasets: Collection[str] | None = None,
) -> list[Result]:
    """One Result per run of any status, ordered by run. The rule is applied by the database, along its indexes."""
    value, at, used = _result_columns(chosen)
    query = select(
        Run.id, Run.key, Run.attempt, Run.protocol, Run.status, Run.method, Run.dataset, Run.seed, Run.spec,
        Run.partition_label, Partition.hash, value, at, used,
    ).join(Partition, Run.partition_id == Partition.id, isouter=True).where(visible(engine))  # fmt: skip
    for column, wanted in ((Run.method, methods), (Run.dataset, datasets)):
        if wanted is not None:
            query = query.where(column.in_(wanted))
    with reading(engine) as c:
        return [Result(*row) for row in c.execute(query.order_by(Run.id))]


def curves(engine: Engine, run_ids: Collection[int], *, points: int | None = None, seconds: bool = False) -> dict[int, Curve]:
    """The curves of runs of *one* protocol by run; runs without an evaluated round are left out.

    With `points`, at most about that many evaluated rounds are read, evenly spaced, first and last included: then
    reading is a seek for each instead of a scan of thousands. All curves share these rounds as far as they get.
    """
    at = _evaluated(engine, run_ids)
    if points is not None and len(at) > points:
        at = at[np.unique(np.linspace(0, len(at) - 1, points).round().astype(int))]
    spent = _seconds() if seconds else literal(0.0)
    all_rounds = select(Round.run_id, Round.round, Round.accuracy, spent.label("seconds"))
    r = all_rounds.where(Round.run_id.in_(run_ids)).subquery().c
    query = select(r.run_id, r.round, r.accuracy, r.seconds).where(r.round.in_(at.tolist()), r.accuracy.is_not(None))
    with reading(engine) as c:
        rows = floats(c.execute(query.order_by(r.run_id, r.round)).all(), 4)
    ids, starts = np.unique(rows[:, 0], return_index=True)
    return {
        int(run_id): Curve(block[:, 1].astype(np.int64), block[:, 2], block[:, 3] if seconds else None)
        for run_id, block in zip(ids, np.split(rows, starts[1:]), strict=False)
    }


def series(engine: Engine, run_id: int, name: str) -> Curve:
    """A second accuracy series of a run, e.g. of Ditto's global model. Raises UserError if there is none so named."""
    query = select(Series.round, Series.accuracy).where(Series.run_id == run_id, Series.name == name)
    with reading(engine) as c:
        rows = floats(c.execute(query.order_by(Series.round)).all(), 2)
        if not len(rows):
            raise UserError(f"Run {run_id} has no series '{name}'.", _it_has(c, Series.name, Series.run_id == run_id))
    return Curve(rows[:, 0].astype(np.int64), rows[:, 1])


def partitions(engine: Engine, *, datasets: Collection[str] | None = None) -> list[PartitionInfo]:
    """The stored partitions in the order in which they were stored."""
    query = _partition_query().where(visible_partition(engine)).order_by(Partition.id)
    if datasets is not None:
        query = query.where(Partition.dataset.in_(datasets))
    with reading(engine) as c:
        return [_partition(row) for row in c.execute(query)]


def partition(engine: Engine, hash_or_id: int | str) -> PartitionInfo:
    """One partition by number or by (the beginning of) its hash. Raises UserError if none or several fit."""
    text = str(hash_or_id)
    number = isinstance(hash_or_id, int) or (text.isdigit() and len(text) < 8)
    wanted = Partition.id == int(text) if number else Partition.hash.startswith(text, autoescape=True)
    with reading(engine) as c:
        rows = c.execute(_partition_query().where(wanted)).all()
    if len(rows) == 1:
        return _partition(rows[0])
    if rows:
        raise UserError(f"The hashes of {len(rows)} partitions begin with '{text}'.", "Give more digits of the hash.")
    raise UserError(f"No partition '{text}' in this database.", "`pflbench runs show RUN` names the partition of a run.")


def clients(engine: Engine, run_id: int, round: int | None = None) -> Clients:
    """The clients' results after `round` rounds (default: the last evaluated). Raises UserError if none are stored."""
    with reading(engine) as c:
        if round is None:
            round = c.scalar(select(func.max(ClientRound.round)).where(ClientRound.run_id == run_id))
        query = select(ClientRound.client, ClientRound.correct, ClientRound.total, ClientRound.loss)
        query = query.where(ClientRound.run_id == run_id, ClientRound.round == round).order_by(ClientRound.client)
        rows = c.execute(query).all()
    if not rows or round is None:
        where = "" if round is None else f" after round {round}"
        raise UserError(f"Run {run_id} has no client results{where}.", "`pflbench runs show RUN` shows which rounds it has.")
    client, correct, total, loss = (list(column) for column in zip(*rows, strict=True))
    return Clients(round, _integers(client), _integers(correct), _integers(total), np.array(loss, dtype=np.float64))


def artifact(engine: Engine, run_id: int, name: str, round: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
    """A named array of a run and round (default: the newest). Raises UserError if there is none, listing the names."""
    query = select(Artifact.dtype, Artifact.shape, Artifact.data).where(Artifact.run_id == run_id, Artifact.name == name)
    if round is not None:
        query = query.where(Artifact.round == round)
    with reading(engine) as c:
        row = c.execute(query.order_by(Artifact.round.desc()).limit(1)).first()
        if row is None:
            where = "" if round is None else f" of round {round}"
            hint = _it_has(c, Artifact.name, Artifact.run_id == run_id)
            raise UserError(f"Run {run_id} has no artifact '{name}'{where}.", hint)
    return unpack_array(row.data, row.dtype, row.shape)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection; what the user can mend (damaged or locked file) becomes a UserError."""
    with friendly(engine.url), engine.connect() as connection:
        yield connection


def _it_has(c: Connection, name: InstrumentedAttribute[str], where: ColumnElement[bool]) -> str:
    return f"It has: {', '.join(c.scalars(select(name).where(where).distinct().order_by(name))) or 'none'}."


def _integers(values: Sequence[int]) -> Integers:
    return np.array(values, dtype=np.int64)


def _info(engine: Engine, row: Sequence[Any]) -> RunInfo:
    info = RunInfo(*row)
    return replace(info, status=present(engine.url, info.key, info.status))


def _info_query() -> Any:
    last = select(func.max(Round.round)).where(Round.run_id == Run.id).scalar_subquery()
    best = select(func.max(Round.accuracy)).where(Round.run_id == Run.id).scalar_subquery()
    return select(
        Run.id, Run.key, Run.attempt, Run.status, Run.method, Run.dataset, Run.model, Run.partition_label, Run.clients,
        Run.rounds, Run.seed, last, best, Run.device, Run.created_at, Run.finished_at, Run.message,
    )  # fmt: skip


def _find(engine: Engine, text: str) -> int:
    number = text.isdigit() and len(text) < 16
    with reading(engine) as c:
        if number and (found := c.scalar(select(Run.id).where(Run.id == int(text)))) is not None:
            return found
        rows = c.execute(
            select(Run.key, Run.id).where(Run.key.startswith(text.lower(), autoescape=True)).order_by(Run.attempt)
        ).all()
    keys = {key for key, _ in rows}
    if not text or not keys:
        raise UserError(f"No run '{text}' in this database.", "`pflbench runs list` shows the numbers and keys of all runs.")
    if len(keys) > 1:
        raise UserError(f"The keys of {len(keys)} runs begin with '{text}'.", "Give more digits of the key.")
    return int(rows[-1].id)


def _result_columns(chosen: Select) -> tuple[Any, Any, Any]:
    """Correlated subqueries (value, round, rounds used): each a seek in an index, none a scan of all rounds."""
    mine = (Round.run_id == Run.id, Round.accuracy.is_not(None))
    if chosen.rule == "best":
        best = select(func.max(Round.accuracy)).where(Round.run_id == Run.id).correlate(Run).scalar_subquery()
        earliest = select(func.min(Round.round)).where(Round.run_id == Run.id, Round.accuracy == best).correlate(Run)
        return best, earliest.scalar_subquery(), literal(1)
    # One row too many would change the mean: the limit must be inside, hence a subquery in the subquery.
    tail = (
        select(Round.accuracy, Round.round).where(*mine).order_by(Round.round.desc()).limit(chosen.last).correlate(Run)
    ).subquery()
    return tuple(
        select(of).scalar_subquery() for of in (func.avg(tail.c.accuracy), func.max(tail.c.round), func.count(tail.c.round))
    )  # type: ignore[return-value]


def _evaluated(engine: Engine, run_ids: Collection[int]) -> Integers:
    """The evaluated rounds of the run that got furthest."""
    last = select(func.max(Round.round)).where(Round.run_id == Run.id).scalar_subquery()
    furthest = select(Run.id).where(Run.id.in_(run_ids)).order_by(func.coalesce(last, -1).desc(), Run.id).limit(1)
    with reading(engine) as c:
        longest = c.scalar(furthest)
        query = select(Round.round).where(Round.run_id == longest, Round.accuracy.is_not(None)).order_by(Round.round)
        return np.array(c.scalars(query).all(), dtype=np.int64)


def _seconds() -> ColumnElement[float]:
    """Training seconds up to each round; evaluation is the benchmark's time, not the method's."""
    spent = func.coalesce(Round.seconds_receive, 0.0) + func.coalesce(Round.seconds_update, 0.0)
    return func.sum(spent).over(partition_by=Round.run_id, order_by=Round.round, rows=(None, 0))


def floats(rows: Sequence[Any], width: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    # NumPy takes 50 times as long over SQLAlchemy's rows as over tuples.
    return np.array([tuple(row) for row in rows], dtype=np.float64).reshape(-1, width)


def _partition_query() -> Any:
    return select(
        Partition.id, Partition.hash, Partition.scheme, Partition.label, Partition.dataset, Partition.spec,
        Partition.classes, Partition.train_counts, Partition.test_counts, Partition.left_out,
    )  # fmt: skip


def _partition(row: Sequence[Any]) -> PartitionInfo:
    id, hash, scheme, label, dataset, spec, classes, train, test, left_out = row
    counts = [np.array(c, dtype=np.int64).reshape(-1, len(classes)) for c in (train, test)]
    return PartitionInfo(id, hash, scheme, label, dataset, spec, tuple(classes), counts[0], counts[1], left_out)
