"""Writes a run while it is trained. Each transaction first checks by the run's mark that this process still owns it."""

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

# A fence: it differs if the run was replaced by another one, or was begun by another process since. The query locks the row: on a
# server, nobody removes it before the transaction ends.
_MARK = (
    select(RunRow.key, RunRow.attempt, RunRow.created_at, RunRow.started_at)
    .where(RunRow.id == bindparam("run"))
    .with_for_update(read=True, key_share=True)
)


class RunWriter:
    """Writes one run. The first change begins it: `started_at`, as given here, is among its columns.

    hold: takes its lock again if it was lost.

    Methods raise Unreachable and may then be retried: nothing is written twice if only the server's answer was lost.
    They raise Occupied if the run is no longer this process's, and Vanished.
    """

    def __init__(self, engine: Engine, run: Run, started_at: str, hold: RequireOwned) -> None:
        self._engine, self._run_id, self._hold = engine, run.id, hold
        found = (run.key, run.attempt, run.created_at, run.started_at)
        self._mark = (*found[:3], started_at)
        self._accepted: tuple[Any, ...] = (found, self._mark)
        self._unsure = False  # whether the last write may have been committed

    def change(self, **columns: Any) -> None:
        """As `write.update_run`."""
        with self._own() as connection:
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

    @contextmanager
    def _own(self) -> Iterator[Connection]:
        """One transaction, if the run is still this process's."""
        try:
            if self._unsure:  # the lock may have been lost with the server
                self._hold()
            with writing(self._engine) as connection:
                self._require_own(connection)
                yield connection
        except Unreachable:
            self._unsure = True
            raise
        self._unsure, self._accepted = False, (self._mark,)

    def _require_own(self, connection: Connection) -> None:
        """Raises Occupied if another process has begun the run, or it was removed, as any program may do."""
        row = connection.execute(_MARK, {"run": self._run_id}).first()
        if row in self._accepted:
            return
        run, database = f"Run {self._run_id}", place(connection.engine.url)
        if row is None or row[:3] != self._mark[:3]:
            raise Occupied(
                f"{run} has been removed from {database} while it was being trained.",
                "Nothing more of it is written; the same command makes it anew.",
            )
        raise Occupied(
            f"{run} of {database} has been begun by another process while this one trained it.",
            "It goes on there; here nothing more is written.",
        )
