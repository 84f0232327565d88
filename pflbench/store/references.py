"""Series from PFLlib's result files, stored beside our runs: their protocol is unknown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from sqlalchemy import Connection, Engine, delete, func, insert, select

from pflbench.store.arrays import Floats, Integers
from pflbench.store.database import inserted, reading, writing
from pflbench.store.rounds import Curve, floats
from pflbench.store.schema import ReferenceRoundRow, ReferenceRunRow

State = Literal["new", "same", "replaced"]


@dataclass(frozen=True)
class ResultFile:
    """A result file. Arrays are aligned with `round`; accuracy and AUC are fractions; auc and train_loss are NaN if unknown."""

    file: str
    hash: str
    dataset: str
    method: str
    algorithm: str
    goal: str
    times: int
    round: Integers
    accuracy: Floats
    auc: Floats
    train_loss: Floats


@dataclass(frozen=True)
class ReferenceCurve:
    """The accuracies of a stored file."""

    file: str
    dataset: str
    method: str
    algorithm: str
    goal: str
    curve: Curve


def save(engine: Engine, found: ResultFile, *, renamed: bool = False, dry_run: bool = False) -> State:
    """Stores a file's series once: the same content again changes nothing. Returns what was done, or would be in a dry run.

    renamed: the user has named dataset and method, which replace those stored.
    """
    with reading(engine) if dry_run else writing(engine) as c:
        last = select(func.max(ReferenceRoundRow.round)).where(ReferenceRoundRow.reference_id == ReferenceRunRow.id)
        summary = select(ReferenceRunRow.dataset, ReferenceRunRow.method, last.scalar_subquery())
        known = c.execute(summary.where(ReferenceRunRow.hash == found.hash)).first()
        if known is not None and (not renamed or tuple(known) == (found.dataset, found.method, int(found.round[-1]))):
            return "same"
        if not dry_run:
            c.execute(delete(ReferenceRunRow).where(ReferenceRunRow.hash == found.hash))
            _insert(c, found)
    return "new" if known is None else "replaced"


def curves(engine: Engine, datasets: Collection[str]) -> list[ReferenceCurve]:
    """The accuracies of all files on these datasets, by dataset, method, goal and number."""
    r = ReferenceRunRow
    order = (r.dataset, r.method, r.goal, r.times, r.id)
    query = select(r.file, r.dataset, r.method, r.algorithm, r.goal, r.id, ReferenceRoundRow.round, ReferenceRoundRow.accuracy)
    query = query.join(ReferenceRoundRow, ReferenceRoundRow.reference_id == r.id).where(r.dataset.in_(datasets))
    with reading(engine) as c:
        rows = c.execute(query.order_by(*order, ReferenceRoundRow.round)).all()
    found = []
    for (file, dataset, method, algorithm, goal, _), points in groupby(rows, key=lambda row: tuple(row[:6])):
        values = floats([row[6:] for row in points], 2)
        found.append(ReferenceCurve(file, dataset, method, algorithm, goal, Curve(values[:, 0].astype(np.int64), values[:, 1])))
    return found


def datasets(engine: Engine) -> list[str]:
    """The datasets of the stored files, sorted."""
    with reading(engine) as c:
        return list(c.scalars(select(ReferenceRunRow.dataset).distinct().order_by(ReferenceRunRow.dataset)))


def merge(engine: Engine, other: Engine, *, dry_run: bool = False) -> list[str]:
    """Copies the files that only the other database has; returns their names."""
    with reading(engine) as c:
        known = set(c.scalars(select(ReferenceRunRow.hash)))
    with reading(other) as connection:
        files = connection.execute(select(ReferenceRunRow.__table__).order_by(ReferenceRunRow.id)).mappings().all()
    new = [dict(file) for file in files if file["hash"] not in known]
    for file in () if dry_run else new:
        query = select(ReferenceRoundRow.__table__).where(ReferenceRoundRow.reference_id == file.pop("id"))
        with reading(other) as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        with writing(engine) as c:
            if c.scalar(select(ReferenceRunRow.id).where(ReferenceRunRow.hash == file["hash"])) is None:
                _insert_rows(c, file, rows)
    return [file["file"] for file in new]


def _insert(c: Connection, found: ResultFile) -> None:
    names = ("file", "hash", "dataset", "method", "algorithm", "goal", "times")
    columns = (found.round.tolist(), *(_nullable(values) for values in (found.accuracy, found.auc, found.train_loss)))
    rows = [
        {"round": t, "accuracy": accuracy, "auc": auc, "train_loss": loss}
        for t, accuracy, auc, loss in zip(*columns, strict=True)
    ]
    _insert_rows(c, {name: getattr(found, name) for name in names}, rows)


def _insert_rows(c: Connection, file: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    number = inserted(c, insert(ReferenceRunRow).values(file))
    c.execute(insert(ReferenceRoundRow), [{**row, "reference_id": number} for row in rows])


def _nullable(values: Floats) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
