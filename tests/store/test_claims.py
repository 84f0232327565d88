"""One of many makes a run: locks in the server, which end with their process, and who is at a run on either database."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.command import Shell, until
from support.store_samples import make_record, make_spec, python, write_round

from pflbench.errors import Occupied
from pflbench.store import claims, locks, runs, write
from pflbench.store import database as db
from pflbench.store.claims import claimed

KEY, OTHER = "fedcba9876543210", "0123456789abcdef"  # numbers below and above 0
OURS = "FROM pg_stat_activity WHERE application_name LIKE '%, process %' AND datname = current_database()"


@pytest.fixture
def shared(server: Any) -> Iterator[Engine]:
    engine = db.connect(made := server.new())
    yield engine
    engine.dispose()
    server.drop(made)


def another(engine: Engine) -> Engine:
    """As of another process."""
    return db.open_engine(url_of(engine))


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def sql(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement))]


def lost(engine: Engine) -> None:
    """As by a network that was away: the server ends the connections that have locks."""
    sql(engine, f"SELECT pg_terminate_backend(pid) {OURS}")


def require_connections(engine: Engine, wanted: int) -> None:
    """With locks. The server takes a moment to end one."""
    until(lambda: sql(engine, f"SELECT count(*) {OURS}") == [(wanted,)])


def test_one_of_many_gets_a_run(shared: Engine) -> None:
    engines = [another(shared) for _ in range(8)]
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:

        def taken(engine: Engine) -> bool:
            with suppress(Occupied):
                stack.enter_context(claimed(engine, KEY))
                return True
            return False

        assert sum(pool.map(taken, engines)) == 1
        assert claims.held(shared) == {KEY: f"{platform.node()[:40]}, process {os.getpid()}"}
        with pytest.raises(Occupied), claimed(shared, KEY):
            pass
        require_connections(shared, 1)
    assert claims.held(shared) == {}
    for engine in engines:
        engine.dispose()


HOLD = """
import sys, time
from pflbench.store import database as db
from pflbench.store.claims import claimed
with claimed(db.open_engine(sys.argv[1]), sys.argv[2]):
    print("taken", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_process(shared: Engine) -> None:
    process = python(HOLD, url_of(shared), KEY)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(Occupied, match=f"process {process.pid}"), claimed(shared, KEY):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not claims.held(shared))
    with claimed(shared, KEY):
        pass


def test_one_that_was_lost_is_taken_anew_unless_another_has_it(shared: Engine) -> None:
    other = another(shared)
    with claimed(shared, KEY) as still_mine, claimed(shared, OTHER) as also_mine:
        lost(other)
        still_mine()
        assert claims.held(other).keys() == {KEY}
        also_mine()
        assert claims.held(other).keys() == {KEY, OTHER}
        require_connections(other, 2)
        lost(other)
        with claimed(other, KEY), pytest.raises(Occupied):
            still_mine()
        also_mine()
    require_connections(other, 0)
    other.dispose()


@pytest.mark.servers("fast")
def test_a_run_under_way_is_running_where_a_process_is_at_it_and_not_removed(store: Engine, shell: Shell) -> None:
    key = make_spec().key
    run = write.create_run(store, make_spec(), {})
    write.update_run(store, run, status="running")
    write_round(store, run, make_record(0))
    url = url_of(store)
    with locks.locked(store, key):
        assert runs.find(store, run).status == "running"
        assert "running" in shell("runs", "list", "--db", url).out
        assert "is under way" in shell.refused("runs", "rm", str(run), "--yes", "--db", url)
    assert runs.find(store, run).status == "interrupted"
    assert "interrupted" in shell("runs", "list", "--status", "interrupted", "--db", url).out
    assert [runs.with_current_status(store, one).status for one in runs.stored(store, runs.ALL)] == ["interrupted"]
    assert shell("runs", "rm", str(run), "--yes", "--db", url).code == 0
    assert runs.stored(store, runs.ALL) == []
