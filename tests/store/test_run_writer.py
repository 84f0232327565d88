"""What a run writes to a server that fails: it is waited for, and every round is there once, to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.postgres import Server
from support.store_samples import make_record, make_spec, write_round

from pflbench.errors import Unreachable, UserError
from pflbench.store import database as db
from pflbench.store import failures, locks, runs, write
from pflbench.store.failures import patiently
from pflbench.store.run_writer import RunWriter
from pflbench.store.schema import ArtifactRow, ClientRoundRow, RoundRow, SeriesRow

TABLES = (RoundRow, ClientRoundRow, SeriesRow, ArtifactRow)
BEGUN = "2030-01-01T00:00:00Z"


@pytest.fixture
def made(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, RunWriter]]:
    """A run on the server that this process has begun."""
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "15")
    engine = db.connect(url := server.new())
    number = write.create_run(engine, make_spec(), {})
    with locks.locked(engine, make_spec().key) as hold:
        writer = RunWriter(engine, runs.find(engine, number), BEGUN, hold)
        writer.change(started_at=BEGUN)
        yield engine, writer
    engine.dispose()
    server.drop(url)


def records() -> list[Any]:
    arrays = {"traffic": np.arange(6, dtype=np.int32).reshape(2, 3), "W": np.array([np.nan, np.inf, 1 / 3])}
    loss = np.array([1 / 3, np.inf, 1e-300, 0.1 + 0.2])
    return [make_record(t, loss=loss, series={"global": (1 / 7, 0.1)}, artifacts=arrays, peak_memory=2**40) for t in range(3)]


def content(engine: Engine) -> list[list[tuple[Any, ...]]]:
    with engine.connect() as connection:
        columns = [[column for column in table.__table__.columns if column.name != "id"] for table in TABLES]
        return [[tuple(row) for row in connection.execute(sa.select(*of).order_by(*of[:3]))] for of in columns]


def answer_is_lost(_: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the next commit."""
    whole = psycopg.Connection.commit

    def commit(self: Any) -> None:
        whole(self)
        monkeypatch.setattr(psycopg.Connection, "commit", whole)
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(psycopg.Connection, "commit", commit)


def idle_for_too_long(server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction, as a process that was stopped in the middle of it."""
    server.sql(f"ALTER DATABASE {engine.url.database} SET idle_in_transaction_session_timeout = 50")
    engine.dispose()
    whole = write.insert_rows

    def insert_rows(connection: Any, rows: Any) -> None:
        threading.Event().wait(0.2)
        monkeypatch.setattr(write, "insert_rows", whole)
        whole(connection, rows)

    monkeypatch.setattr(write, "insert_rows", insert_rows)


def restarted(server: Server, engine: Engine, _: pytest.MonkeyPatch) -> None:
    server.stop("immediate")
    threading.Timer(0.3, server.start).start()


@pytest.mark.parametrize("fault", [answer_is_lost, idle_for_too_long, restarted])
def test_a_round_is_written_once(
    fault: Any,
    server: Server,
    made: tuple[Engine, RunWriter],
    store: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, writer = made
    first, second, third = records()
    writer.round(first)
    fault(server, engine, monkeypatch)
    patiently(lambda: writer.round(second))
    (told,) = caplog.messages
    assert "Waiting up to 15 seconds for it" in told
    assert "s3cret" not in told
    writer.round(third)
    write.create_run(store, make_spec(), {})
    for record in records():
        write_round(store, 1, record)
    assert content(engine) == content(store)


def test_a_server_that_takes_no_writes_is_named_and_not_waited_for(server: Server, made: tuple[Engine, RunWriter]) -> None:
    """As a standby after a failover."""
    engine, writer = made
    (first, *_) = records()
    for mode in ("on", "off"):
        server.sql(f"ALTER DATABASE {engine.url.database} SET default_transaction_read_only = {mode}")
        engine.dispose()
        if mode == "on":
            with pytest.raises(UserError, match="in a read-only transaction") as told:
                patiently(lambda: writer.round(first))
            assert not isinstance(told.value, Unreachable)
    writer.round(first)


def test_patience_ends(server: Server, made: tuple[Engine, RunWriter], monkeypatch: pytest.MonkeyPatch) -> None:
    _, writer = made
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "0.6")
    server.stop("immediate")
    try:
        with pytest.raises(Unreachable, match=r"Waited 1 seconds for it") as told:
            patiently(lambda: writer.round(records()[0]))
        assert "s3cret" not in str(told.value)
    finally:
        server.start()
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "ten minutes")
    with pytest.raises(UserError, match="no number of seconds"):
        failures.patience()
