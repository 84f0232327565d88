"""What a run writes while it goes on. Each transaction finds first that the run is still the one that this process has begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, select

from pflbench.errors import Occupied, Unreachable
from pflbench.store import write
from pflbench.store.database import writing
from pflbench.store.failures import place
from pflbench.store.locks import RequireOwned
from pflbench.store.runs import Run
from pflbench.store.schema import RunRow
from pflbench.store.write import RoundRecord


class RunWriter:
    """Of one run, which this process begins at `started_at`. hold: its lock.

    Everything raises Unreachable, and then may be done again: it is not written twice where only the server's answer was lost.
    It raises Occupied where the run is no longer this process's, and Vanished.
    """

    def __init__(self, engine: Engine, run: Run, started_at: str, hold: RequireOwned) -> None:
        self._engine, self._run_id, self._hold = engine, run.id, hold
        self._before = _mark(run.key, run.attempt, run.created_at, run.started_at)
        self._mark = _mark(run.key, run.attempt, run.created_at, started_at)
        self._unsure = False  # whether what was written last may be there

    def begin(self, **columns: Any) -> None:
        """As `write.update_run`; `started_at` is among the columns."""
        with self._own(self._before, self._mark) as connection:
            write.update_row(connection, self._run_id, columns)

    def rewind(self, last_round: int) -> None:
        """As `write.delete_rounds`."""
        with self._own() as connection:
            write.delete_rounds(connection, self._run_id, last_round)

    def round(self, record: RoundRecord) -> None:
        """Raises as `write.rows_of`."""
        rows = write.rows_of(self._run_id, record)
        with self._own() as connection:
            if not (self._unsure and write.has_round(connection, self._run_id, record.round)):
                write.insert_rows(connection, rows)

    def change(self, **columns: Any) -> None:
        """As `write.update_run`."""
        with self._own() as connection:
            write.update_row(connection, self._run_id, columns)

    @contextmanager
    def _own(self, *marks: str) -> Iterator[Connection]:
        """One transaction. marks: those of which the run must have one; without, this process's."""
        try:
            self._hold()
            with writing(self._engine) as connection:
                _require_own(connection, self._run_id, marks or (self._mark,))
                yield connection
        except Unreachable:
            self._unsure = True
            raise
        self._unsure = False


def _mark(key: str, attempt: int, created_at: str, started_at: str | None) -> str:
    """Tells a run from one that was made in its place, and from itself when somebody has begun it since."""
    return f"{key}/{attempt}/{created_at}/{started_at}"


# Where several write at once, nobody removes the row before the transaction ends.
_ROW = (
    select(RunRow.key, RunRow.attempt, RunRow.created_at, RunRow.started_at)
    .where(RunRow.id == bindparam("run"))
    .with_for_update(read=True, key_share=True)
)


def _require_own(connection: Connection, run_id: int, marks: tuple[str, ...]) -> None:
    """Raises Occupied unless the run has one of these marks: it may have been removed, also by other programs, or begun anew."""
    row = connection.execute(_ROW, {"run": run_id}).first()
    found = "" if row is None else _mark(*row)
    if found in marks:
        return
    name = place(connection.engine.url)
    if found.rpartition("/")[0] != marks[0].rpartition("/")[0]:
        raise Occupied(
            f"Run {run_id} has been removed from {name} while it was being trained.",
            "Nothing more of it is written; the same command makes it anew.",
        )
    raise Occupied(
        f"Run {run_id} of {name} has been begun by another process while this one trained it.",
        "It goes on there; here nothing more is written.",
    )
