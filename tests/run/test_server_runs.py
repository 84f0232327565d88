"""Runs whose database is on a server that goes away, and whose checkpoints lie where other machines reach them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.command import Shell
from support.postgres import PASSWORD, Server
from support.runs import interrupted, numbers, rows, run, short
from support.store_samples import make_record, make_spec, python, write_round

from pflbench.errors import Occupied, Unreachable, UserError
from pflbench.run import places
from pflbench.run.execution import Execution
from pflbench.run.training import execute
from pflbench.store import database as db
from pflbench.store import runs, write

CUT_OFF = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%, process %'")


@pytest.fixture
def shared(server, tmp_path, monkeypatch):
    """A database on the server, and checkpoints in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    engine = db.connect(url := server.new())
    yield engine
    engine.dispose()
    server.drop(url)


def left(tmp_path, suffix):
    return list((tmp_path / "state" / "pflbench" / "checkpoints").glob(f"*.{suffix}"))


def same(store, number, shared, other):
    """All that was measured; JSON is text in one of them."""
    here, there = numbers(store, number), numbers(shared, other)
    *first, artifacts = here
    *second, found = there
    plain = [(t, name, dtype, json.loads(shape), data) for t, name, dtype, shape, data in artifacts]
    return first == second and plain == found


def going(shared, **how):
    return execute(short(rounds=8), shared, Path("data"), Execution(workers=1, checkpoint_every=0, **how))


def away(server: Server, seconds: float) -> None:
    """As if it were killed, and started again later."""
    server.stop("immediate")
    threading.Timer(seconds, server.start).start()


def test_a_server_that_is_restarted_in_the_middle(server, shared, store, tmp_path, caplog):
    whole = run(short(rounds=8), store)[-1].run_id
    for step in going(shared):
        if step.kind == "round" and step.round == 2:
            away(server, 0.3)
    (told,) = caplog.messages
    assert "Waiting up to 600 seconds for it" in told
    assert same(store, whole, shared, 1)
    assert rows(shared, "SELECT status FROM run") == [("finished",)]
    assert left(tmp_path, "*") == []


@pytest.mark.parametrize("at", [4, 5, 10, 15])
def test_a_server_that_goes_away_while_run_starts(at, server, shared, store, tmp_path, monkeypatch, shell: Shell):
    """At one of its first statements, after the three by which it knows the database."""
    count = 0

    def before(*_):
        nonlocal count
        count += 1
        if count == at:
            away(server, 0.2)

    url = shared.url.render_as_string(hide_password=False)
    command = ("run", "-m", "fedavg", "-d", "digits", "--clients", "3", "--rounds", "2", "-q", "--db")
    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        done = shell(*command, url)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)
    assert done.code == 0, done.err
    assert shell(*command, str(store.url.database)).code == 0
    assert same(store, 1, shared, 1)


@pytest.mark.parametrize("ends", ["patience", "ctrl-c"])
def test_a_server_that_is_not_back_in_time(ends, server, shared, store, tmp_path, monkeypatch):
    """The run is interrupted, and goes on from its checkpoint."""
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "0.1")
    whole = run(short(rounds=8), store)[-1].run_id
    steps = going(shared)
    while next(steps).round < 3:
        pass
    server.stop()
    try:
        if ends == "patience":
            with pytest.raises(Unreachable, match="Waited 0 seconds for it") as told:
                list(steps)
            assert PASSWORD not in str(told.value)
        else:
            with pytest.raises(KeyboardInterrupt):
                steps.throw(KeyboardInterrupt)
        assert len(left(tmp_path, "pt")) == 1
    finally:
        server.start()
    assert rows(shared, "SELECT max(round) FROM round") == [(3,)]
    assert runs.find(shared, 1).status == "interrupted"
    again = list(going(shared))
    assert (again[0].kind, again[0].round) == ("resumed", 3)
    assert same(store, whole, shared, 1)


KILLED = """
import sys, time
from pathlib import Path
from support.runs import short
from pflbench.run.execution import Execution
from pflbench.run.training import execute
from pflbench.store import database as db
how = Execution(workers=1, checkpoint_every=0, checkpoints=sys.argv[2])
for step in execute(short(rounds=8), db.connect(sys.argv[1]), Path("data"), how):
    print(step.round, flush=True)
    if step.round == 4:
        time.sleep(60)
"""


@pytest.mark.slow
def test_another_machine_goes_on_where_one_has_died(shared, store, tmp_path):
    whole = run(short(rounds=8), store)[-1].run_id
    url, folder = shared.url.render_as_string(hide_password=False), str(tmp_path / "shared")
    child = python(KILLED, url, folder)
    while child.stdout.readline().strip() != "4":
        pass
    with pytest.raises(Occupied, match=f"process {child.pid}"):
        next(going(shared, checkpoints=folder))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    while runs.find(shared, 1).status == "running":
        time.sleep(0.01)
    again = list(going(shared, checkpoints=folder))
    assert (again[0].kind, again[0].round) == ("resumed", 4)
    assert same(store, whole, shared, 1)
    assert list(Path(folder).iterdir()) == []


def test_a_worker_that_was_cut_off_leaves_its_run_to_the_other(shared):
    steps = going(shared)
    while next(steps).round < 3:
        pass
    elsewhere = db.open_engine(shared.url.render_as_string(hide_password=False))
    with elsewhere.begin() as connection:
        connection.execute(CUT_OFF)
    other = going(elsewhere)
    time.sleep(1)  # `started_at`, by which they differ, is in seconds
    assert next(other).kind == "resumed"
    with pytest.raises(Occupied, match="begun by another process"):
        next(steps)
    assert list(other)[-1].kind == "finished"
    assert rows(shared, "SELECT status, (SELECT count(*) FROM round) FROM run") == [("finished", 9)]
    elsewhere.dispose()


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_checkpoints_in_a_place_of_ones_own(store, tmp_path, kind):
    where = {"folder": str(tmp_path / "own"), "file": f"file://{tmp_path}/own", "memory": "memory://own/deep"}[kind]
    whole = run(short(), store)[-1].run_id
    interrupted(short(), store, 2, Execution(workers=1, checkpoints=where), force=True)
    assert list(tmp_path.glob("*.checkpoints/*.pt")) == []
    place, name = places.place_of(store.url, where), places.name_of(runs.find(store, 2), store.url, where)
    with place.read(f"{name}.pt") as found:
        assert len(found.read()) > 1000
    resumed = run(short(), store, checkpoints=where, force=True)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", 2)
    assert numbers(store, 2) == numbers(store, whole)
    assert place.read(f"{name}.pt") is None


def test_places_that_cannot_be(store):
    for where, told in (("nosuch://a/b", "nosuch"), ("ftp://me:secret@host/a", "would be stored")):
        with pytest.raises(UserError, match=told) as refused:
            places.place_of(store.url, where)
        assert "secret" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.servers
def test_32_writers_at_once_lose_nothing(store):
    url, rounds = store.url.render_as_string(hide_password=False), 15

    def write_all(seed):
        engine = db.connect(url)
        number = write.create_run(engine, make_spec(seed=seed), {})
        for t in range(rounds):
            write_round(engine, number, make_record(t, clients=20))
        engine.dispose()

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write_all, range(32)))
    found = "SELECT seed, count(*), sum(correct) FROM run JOIN client_round ON run_id = run.id GROUP BY seed ORDER BY seed"
    correct = sum(int(make_record(t, clients=20).correct.sum()) for t in range(rounds))
    assert rows(store, found) == [(seed, 20 * rounds, correct) for seed in range(32)]


@pytest.mark.slow
def test_no_password_is_stored_or_shown(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    url = shared.url.set(drivername="postgresql").render_as_string(hide_password=False)
    assert PASSWORD in url
    shell = Shell(capsys)
    small = ("-m", "fedavg", "-d", "digits", "--clients", "3", "--rounds", "1", "--db", url)
    told = [shell("run", *small), shell("sweep", *small, "--seeds", "0", "--jobs", "1"), shell("db", "info", "--db", url)]
    told += [shell("doctor", "--db", url), shell("sweep", "list", "--db", url), shell("runs", "show", "1", "--db", url)]
    assert [done.code for done in told] == [0] * 6, told
    assert "checkpoints" in told[0].err
    assert PASSWORD not in "".join(done.out + done.err for done in told)
    stored = str(rows(shared, "SELECT environment FROM run")) + str(rows(shared, "SELECT environment FROM sweep"))
    assert "postgresql://.../" in stored
    assert PASSWORD not in stored
