"""Writes a run while it is trained. Each transaction first checks that this process still owns the run."""

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
    """Writes one run, which this process begins at `started_at`. hold: checks its lock.

    Methods raise Unreachable and may then be retried: nothing is written twice if only the server's answer was lost.
    They raise Occupied if the run is no longer this process's, and Vanished.
    """

    def __init__(self, engine: Engine, run: Run, started_at: str, hold: RequireOwned) -> None:
        self._engine, self._run_id, self._hold = engine, run.id, hold
        self._before = _mark(run.key, run.attempt, run.created_at, run.started_at)
        self._mark = _mark(run.key, run.attempt, run.created_at, started_at)
        self._unsure = False  # whether the last write may have been committed

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
        """One transaction, if the run has one of these marks; by default this process's."""
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
    """A fence: differs if the run was replaced by another one, or was begun by another process since."""
    return f"{key}/{attempt}/{created_at}/{started_at}"


# Locks the row: on a server, nobody removes it before the transaction ends.
_ROW = (
    select(RunRow.key, RunRow.attempt, RunRow.created_at, RunRow.started_at)
    .where(RunRow.id == bindparam("run"))
    .with_for_update(read=True, key_share=True)
)


def _require_own(connection: Connection, run_id: int, marks: tuple[str, ...]) -> None:
    """Raises Occupied unless the run has one of these marks. Any program may have removed it, or another process begun it."""
    row = connection.execute(_ROW, {"run": run_id}).first()
    mark = "" if row is None else _mark(*row)
    if mark in marks:
        return
    name = place(connection.engine.url)
    if mark.rpartition("/")[0] != marks[0].rpartition("/")[0]:
        raise Occupied(
            f"Run {run_id} has been removed from {name} while it was being trained.",
            "Nothing more of it is written; the same command makes it anew.",
        )
    raise Occupied(
        f"Run {run_id} of {name} has been begun by another process while this one trained it.",
        "It goes on there; here nothing more is written.",
    )
