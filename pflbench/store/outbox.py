"""What a run writes while it goes on, in order: to the database or, while its server is away, to a file for later.

Each transaction finds first that the run is still the one that this process has begun.

The file has a line of JSON for each round and each change of the run's row. It is delivered in order; a round that is there
already, since only the server's answer was lost, is not written twice.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, select

from pflbench.errors import Occupied, Unreachable, UserError, Vanished
from pflbench.store import write
from pflbench.store.database import open_engine, to_url, writing
from pflbench.store.failures import patience, place
from pflbench.store.locks import Hold
from pflbench.store.runs import Run
from pflbench.store.schema import RunRow
from pflbench.store.write import RoundRecord

Entry = dict[str, Any]
_SHARE = 10  # a look whether the server is back takes at most one part in so many of the time
_PAUSES = (1.0, 15.0)  # seconds between two looks: at first, and at most


class Outbox:
    """Of one run, which this process holds. mark: tells its file from that of a run which somebody has begun since."""

    def __init__(self, engine: Engine, run_id: int, hold: Hold, file: Path, mark: str) -> None:
        self._engine, self._run_id, self._hold = engine, run_id, hold
        self._file, self._mark = file, mark
        self._next_look, self._pause = 0.0, _PAUSES[0]
        self._untold: list[str] = []
        self.kept = 0  # rounds that are in the file
        self._vanished: Vanished | None = None

    def begin(self, before: str, **columns: Any) -> None:
        """As `write.update_run`, of a run that so far has the mark `before`. Raises Unreachable, and as `round`."""
        with writing(self._engine) as connection:
            self._hold.require(connection)
            _require_own(connection, self._run_id, before, self._mark)
            write.update_row(connection, self._run_id, columns)

    def rewind(self, last_round: int) -> None:
        """As `write.rewind`. Raises Unreachable, and as `round`."""
        with writing(self._engine) as connection:
            self._hold.require(connection)
            _require_own(connection, self._run_id, self._mark)
            write.delete_rounds(connection, self._run_id, last_round)

    def round(self, record: RoundRecord) -> None:
        """Raises as `write.rows_of`, Occupied where the run is no longer this process's, and Vanished.

        Then the round is in the file in which the database is kept.
        """
        self._put({"round": record.round, "rows": write.rows_of(self._run_id, record)})
        self.require_in_place()

    def change(self, **columns: Any) -> None:
        """As `write.update_run`; where the database has vanished, in the file in which it is kept."""
        write.check_columns(columns)
        self._put({"change": columns})

    def require_in_place(self) -> None:
        """Raises Vanished where the database has vanished since."""
        if self._vanished is not None:
            raise self._vanished

    def settle(self) -> None:
        """Delivers what is left, and waits for the server as long as patience lasts. Raises Unreachable where it is not back."""
        seconds = patience()
        until = time.monotonic() + seconds
        while self._waiting:
            try:
                self._deliver()
            except Unreachable as error:
                if time.monotonic() + self._pause > until:
                    raise Unreachable(
                        f"{place(self._engine.url)} has not been reached for {seconds:.0f} seconds. Run {self._run_id} is "
                        f"interrupted; {self.kept} of its rounds are kept in {self._file}.",
                        "The same command delivers them when the server is back.",
                    ) from error
                time.sleep(self._pause)
                self._longer()

    def news(self) -> list[str]:
        """What the user should know, each once."""
        told, self._untold = self._untold, []
        return told

    @property
    def _waiting(self) -> bool:
        return self._next_look > 0

    def _put(self, entry: Entry) -> None:
        if self._waiting:
            self._append(entry)
            if time.monotonic() >= self._next_look:
                self._look()
            return
        try:
            if self._vanished is None:
                self._write(self._engine, entry)
            else:
                self._write_kept(self._vanished, entry)
        except Vanished as gone:
            self._vanished = gone
            self._write_kept(gone, entry)
        except Unreachable as error:
            self._append(entry)
            self._untold.append(f"{error.message} Rounds are kept in {self._file.parent} until it is back; training goes on.")
            self._next_look = time.monotonic() + self._pause

    def _write(self, engine: Engine, entry: Entry, *, again: bool = False) -> None:
        _write(engine, self._run_id, self._hold, self._mark, entry, again=again)

    def _write_kept(self, gone: Vanished, entry: Entry) -> None:
        """To the file in which the database is kept."""
        if gone.kept is None:
            return
        engine = open_engine(to_url(str(gone.kept)))
        try:
            self._write(engine, entry, again=True)
        finally:
            engine.dispose()

    def _look(self) -> None:
        """Training goes on if the server is not back."""
        begun = time.monotonic()
        try:
            self._deliver()
        except Unreachable:
            took = time.monotonic() - begun
            self._longer()
            self._next_look = time.monotonic() + max(self._pause, _SHARE * took)

    def _longer(self) -> None:
        self._pause = min(2 * self._pause, _PAUSES[1])

    def _deliver(self) -> None:
        for entry in _entries(self._file):
            self._write(self._engine, entry, again=True)
        self._file.unlink()
        self._untold.append(f"The database is back: {self.kept} {'round was' if self.kept == 1 else 'rounds were'} delivered.")
        self._next_look, self._pause, self.kept = 0.0, _PAUSES[0], 0

    def _append(self, entry: Entry) -> None:
        before = self._file.stat().st_size if self._file.exists() else 0
        lines = [] if before else [{"mark": self._mark}]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as out:
                out.write("".join(json.dumps(line, default=_plain) + "\n" for line in (*lines, entry)).encode())
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            with suppress(OSError):  # half a line, with the next one behind it, could not be read
                os.truncate(self._file, before)
            raise UserError(
                f"The database cannot be reached, and {self._file} not be written: {error.strerror}.",
                "All rounds before are kept. Is the disk full?",
            ) from error
        self.kept += "round" in entry


def mark_of(run: Run) -> str:
    """What a run's file must say for it to be delivered: nobody has begun the run again since."""
    return _mark(run.key, run.attempt, run.created_at, run.started_at)


def _mark(key: str, attempt: int, created_at: str, started_at: str | None) -> str:
    return f"{key}/{attempt}/{created_at}/{started_at}"


def _begun(mark: str) -> str:
    """The run that was begun, without when."""
    return mark.rpartition("/")[0]


def deliver_left(engine: Engine, run: Run, hold: Hold, file: Path) -> int:
    """Delivers what an earlier process has left of this run; returns how many rounds.

    A file of a run that was gone on with elsewhere since, which has made the same rounds, is removed.
    """
    mark, rounds = mark_of(run), 0
    for entry in _entries(file, mark):
        _write(engine, run.id, hold, mark, entry, again=True)
        rounds += "round" in entry
    file.unlink(missing_ok=True)
    return rounds


def _write(engine: Engine, run_id: int, hold: Hold, mark: str, entry: Entry, *, again: bool = False) -> None:
    """One transaction, in which the run is this process's. again: it may be there already."""
    with writing(engine) as connection:
        hold.require(connection)
        _require_own(connection, run_id, mark)
        if "change" in entry:
            if entry["change"].get("status") == "finished":
                write.require_whole(connection, run_id)
            write.update_row(connection, run_id, entry["change"])
        elif not (again and write.has_round(connection, run_id, entry["round"])):
            write.insert_rows(connection, entry["rows"])


# Where several write at once, nobody removes the row before the transaction ends.
_ROW = (
    select(RunRow.key, RunRow.attempt, RunRow.created_at, RunRow.started_at)
    .where(RunRow.id == bindparam("run"))
    .with_for_update(read=True, key_share=True)
)


def _require_own(connection: Connection, run_id: int, *marks: str) -> None:
    """Raises Occupied unless the run has one of these marks: it may have been removed, also by other programs, or begun anew."""
    row = connection.execute(_ROW, {"run": run_id}).first()
    found = None if row is None else _mark(*row)
    if found in marks:
        return
    name = place(connection.engine.url)
    if found is None or all(_begun(found) != _begun(mark) for mark in marks):
        raise Occupied(
            f"Run {run_id} has been removed from {name} while it was being trained.",
            "Nothing more of it is written; the same command makes it anew.",
        )
    raise Occupied(
        f"Run {run_id} of {name} has been begun by another process while this one trained it.",
        "It goes on there; here nothing more is written.",
    )


def _entries(file: Path, mark: str | None = None) -> Iterator[Entry]:
    """mark: what the file must have. A last line that is not whole was being written when its process was killed."""
    if not file.exists():
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if not line.endswith("\n"):
                return
            entry = json.loads(line, object_hook=_restored)
            if number:
                yield entry
            elif mark not in (None, entry["mark"]):
                return


def _plain(value: Any) -> Any:
    """Of a blob, or of a number of NumPy's."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value.item()


def _restored(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
