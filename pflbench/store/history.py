"""One run round by round, as far as it got."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine, select

from pflbench.errors import UserError
from pflbench.store.read import Floats, Integers, floats, reading
from pflbench.store.schema import Round, Run, Series


@dataclass(frozen=True)
class History:
    """Every round of a run, ascending, all arrays of one length; NaN where something was not measured.

    accuracy is a fraction; receive, update and evaluate are the seconds that each phase of the round took.
    """

    round: Integers
    accuracy: Floats
    test_loss: Floats
    train_loss: Floats
    receive: Floats
    update: Floats
    evaluate: Floats

    @property
    def best(self) -> int | None:
        """The place in the arrays of the first round with the highest accuracy; None without an evaluated round."""
        return None if np.isnan(self.accuracy).all() else int(np.nanargmax(self.accuracy))


@dataclass(frozen=True)
class Second:
    """A second accuracy series of a run, with its mean loss over the test samples."""

    name: str
    round: Integers
    accuracy: Floats
    test_loss: Floats


def method(engine: Engine, run_id: int) -> str:
    """The name of a run's method. Raises UserError where there is no such run."""
    with reading(engine) as c:
        found = c.scalar(select(Run.method).where(Run.id == run_id))
    if found is None:
        raise UserError(f"No run '{run_id}' in this database.", "`pflbench runs list` shows the numbers and keys of all runs.")
    return found


def history(engine: Engine, run_id: int) -> History:
    """Empty arrays for a run without rounds."""
    columns = (Round.accuracy, Round.test_loss, Round.train_loss)
    seconds = (Round.seconds_receive, Round.seconds_update, Round.seconds_evaluate)
    query = select(Round.round, *columns, *seconds).where(Round.run_id == run_id).order_by(Round.round)
    with reading(engine) as c:
        rows = floats(c.execute(query).all(), 7)
    return History(rows[:, 0].astype(np.int64), *rows[:, 1:].T)


def second_series(engine: Engine, run_id: int) -> tuple[Second, ...]:
    """The second series of a run, by name."""
    query = select(Series.name, Series.round, Series.accuracy, Series.test_loss)
    query = query.where(Series.run_id == run_id).order_by(Series.name, Series.round)
    with reading(engine) as c:
        found = c.execute(query).all()
    names = list(dict.fromkeys(row.name for row in found))
    rows = {name: floats([row[1:] for row in found if row.name == name], 3) for name in names}
    return tuple(Second(name, of[:, 0].astype(np.int64), of[:, 1], of[:, 2]) for name, of in rows.items())
