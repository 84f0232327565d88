"""Rounds that cannot be delivered are kept, and delivered later: in order, each once, to the last bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.postgres import Server
from support.store_samples import make_record, make_spec, write_round

from pflbench.errors import Occupied, Unreachable, UserError
from pflbench.store import database as db
from pflbench.store import locks, outbox, runs, write
from pflbench.store.outbox import Outbox
from pflbench.store.schema import ArtifactRow, ClientRoundRow, RoundRow, SeriesRow

TABLES = (RoundRow, ClientRoundRow, SeriesRow, ArtifactRow)


class Made:
    """A run on the server, held by this process, and its outbox."""

    def __init__(self, engine: Engine, hold: locks.Hold, folder: Path) -> None:
        self.engine, self.hold, self.file = engine, hold, folder / "run.spool"
        self.id = write.create_run(engine, make_spec(), {})
        found = runs.newest(engine, make_spec().key)
        assert found is not None
        self.run, self.mark = found, outbox.mark_of(found)
        self.outbox = Outbox(engine, self.id, hold, self.file, self.mark)


@pytest.fixture
def made(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "0.1")
    monkeypatch.setattr(outbox, "_PAUSES", (0.01, 0.05))
    engine = db.connect(server.new())
    with locks.locked(engine, make_spec().key) as hold:
        yield Made(engine, hold, tmp_path)
    engine.dispose()


def records() -> list[Any]:
    arrays = {"traffic": np.arange(6, dtype=np.int32).reshape(2, 3), "W": np.array([np.nan, np.inf, 1 / 3])}
    loss = np.array([1 / 3, np.inf, 1e-300, 0.1 + 0.2])
    return [make_record(t, loss=loss, series={"global": (1 / 7, 0.1)}, artifacts=arrays, peak_memory=2**40) for t in range(6)]


def content(engine: Engine) -> list[list[tuple[Any, ...]]]:
    with engine.connect() as connection:
        columns = [[column for column in table.__table__.columns if column.name != "id"] for table in TABLES]
        return [[tuple(row) for row in connection.execute(sa.select(*of).order_by(*of[:3]))] for of in columns]


def test_what_is_written_while_the_server_is_away(server: Server, made: Made, store: Engine) -> None:
    for record in records()[:2]:
        made.outbox.round(record)
    assert not made.file.exists()
    server.stop("immediate")
    try:
        for record in records()[2:]:
            made.outbox.round(record)
        made.outbox.change(status="failed", message="ü")
        with pytest.raises(Unreachable, match=r"4 of its rounds are kept in .*run\.spool") as told:
            made.outbox.settle()
        assert "s3cret" not in str(told.value)
    finally:
        server.start()
    # The first of them is there already: only the server's answer was lost.
    write_round(made.engine, made.id, records()[2])
    made.outbox.settle()
    assert not made.file.exists()
    lost, back = made.outbox.news()
    assert "cannot be reached" in lost
    assert "4 rounds were delivered" in back
    found = runs.find(made.engine, made.id)
    assert (found.status, found.message, found.last_round) == ("failed", "ü", 5)

    assert write.create_run(store, make_spec(), {}) == made.id
    for record in records():
        write_round(store, 1, record)
    assert content(made.engine) == content(store)


def test_a_disk_that_is_full_leaves_no_half_line(server: Server, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written behind it would make all of the file unreadable."""
    made.outbox.round(records()[0])
    server.stop("immediate")
    try:
        made.outbox.round(records()[1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full_behind(made.file))
            with pytest.raises(UserError, match="Is the disk full"):
                made.outbox.round(records()[2])
        made.outbox.change(status="failed", message="x")
    finally:
        server.start()
    made.outbox.settle()
    found = runs.find(made.engine, made.id)
    assert (found.status, found.last_round) == ("failed", 1)


def full_behind(file: Path) -> Callable[[int], None]:
    """In place of os.fsync: some of what was written last is there, and the rest found no room."""

    def fsync(_: int) -> None:
        os.truncate(file, file.stat().st_size - 20)
        raise OSError(28, "No space left on device")

    return fsync


def spooled(made: Made, of: list[Any]) -> str:
    """The text of a file with these rounds."""
    entries = [{"round": one.round, "rows": write.rows_of(made.id, one)} for one in of]
    lines = [{"mark": made.mark}, *entries]
    return "".join(json.dumps(line, default=outbox._plain) + "\n" for line in lines)


def test_what_a_dead_process_has_left(made: Made) -> None:
    made.file.write_text(spooled(made, records()[:3])[:-5])  # it was killed as it wrote the last one
    assert outbox.deliver_left(made.engine, made.run, made.hold, made.file) == 2
    assert runs.find(made.engine, made.id).last_round == 1
    assert not made.file.exists()
    assert outbox.deliver_left(made.engine, made.run, made.hold, made.file) == 0

    made.file.write_text(spooled(made, records()[2:]))
    write.update_run(made.engine, made.id, started_at="2030-01-01T00:00:00Z")  # somebody has begun it again since
    run = runs.find(made.engine, made.id)
    assert outbox.deliver_left(made.engine, run, made.hold, made.file) == 0
    assert runs.find(made.engine, made.id).last_round == 1
    assert not made.file.exists()


def test_nothing_is_written_to_a_run_that_another_has_taken_over(made: Made) -> None:
    with made.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE claim SET owner = 'another'")
    with pytest.raises(Occupied, match="taken this run over"):
        made.outbox.round(records()[0])
    assert content(made.engine)[0] == []


def test_a_patience_that_is_no_number(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "ten minutes")
    with pytest.raises(UserError, match="no number of seconds"):
        made.outbox.settle()
