"""Series from PFLlib's result files, stored beside our runs: their protocol is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from sqlalchemy import Engine, delete, func, insert, select

from pflbench.store.arrays import Floats, Integers, nan_to_none
from pflbench.store.database import inserted, reading, writing
from pflbench.store.rounds import floats
from pflbench.store.schema import ReferenceRoundRow, ReferenceRunRow

State = Literal["new", "same", "replaced"]
_DESCRIBED = ("file", "hash", "dataset", "method", "algorithm", "goal", "times")
_MEASURED = ("round", "accuracy", "auc", "train_loss")


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
            number = inserted(c, insert(ReferenceRunRow).values({name: getattr(found, name) for name in _DESCRIBED}))
            measured = [nan_to_none(values) for values in (found.accuracy, found.auc, found.train_loss)]
            rows = [dict(zip(_MEASURED, row, strict=True)) for row in zip(found.round.tolist(), *measured, strict=True)]
            c.execute(insert(ReferenceRoundRow), [{**row, "reference_id": number} for row in rows])
    return "new" if known is None else "replaced"


def stored(engine: Engine) -> list[ResultFile]:
    """All stored files, by dataset, method, goal and number."""
    r, of_round = ReferenceRunRow, ReferenceRoundRow.__table__.c
    files = select(r.__table__).order_by(r.dataset, r.method, r.goal, r.times, r.id)
    rounds = select(*(of_round[name] for name in _MEASURED)).order_by(of_round.round)
    found = []
    with reading(engine) as c:
        for file in c.execute(files).mappings().all():
            t, *measured = floats(c.execute(rounds.where(of_round.reference_id == file["id"])).all(), len(_MEASURED)).T
            columns = {"round": t.astype(np.int64), **dict(zip(_MEASURED[1:], measured, strict=True))}
            found.append(ResultFile(**{name: file[name] for name in _DESCRIBED}, **columns))
    return found


def merge(engine: Engine, other: Engine, *, dry_run: bool = False) -> list[str]:
    """Copies the files that only the other database has; returns their names."""
    return [found.file for found in stored(other) if save(engine, found, dry_run=dry_run) == "new"]
