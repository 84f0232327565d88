"""Runs whose database is on a server that goes away, and whose checkpoints lie where other machines reach them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command import ROOT, TESTS, Shell
from support.postgres import PASSWORD
from support.runs import numbers, rows, run, short
from support.store_samples import make_record, make_spec, write_round

from pflbench.errors import Occupied, Unreachable, UserError
from pflbench.run import places
from pflbench.run.execution import Execution
from pflbench.run.loop import execute
from pflbench.store import claims, outbox, runs, write
from pflbench.store import database as db

STALE = f"UPDATE claim SET beat_at = now() - interval '{claims.EXPIRY + 1} seconds'"


@pytest.fixture
def shared(server, tmp_path, monkeypatch):
    """A database on the server, and checkpoints in a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(outbox, "_PAUSES", (0.01, 0.05))
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


def test_a_server_that_is_restarted_in_the_middle(server, shared, store, tmp_path):
    whole = run(short(rounds=8), store)[-1].run_id
    news, kept = [], 0
    for step in going(shared):
        news += step.news
        if step.kind == "round" and step.round == 2:
            server.stop("immediate")
        elif step.kind == "round" and step.round == 5:
            kept = len(left(tmp_path, "spool"))
            server.start()
    assert kept == 1
    assert any("training goes on" in text for text in news)
    assert any("were delivered" in text for text in news)
    assert same(store, whole, shared, 1)
    assert rows(shared, "SELECT status FROM run") == [("finished",)]
    assert left(tmp_path, "spool") == left(tmp_path, "pt") == rows(shared, "SELECT key FROM claim") == []


@pytest.mark.slow
@pytest.mark.parametrize("at", ["the end", "ctrl-c"])
def test_a_server_that_is_not_back_in_time(server, shared, store, tmp_path, monkeypatch, at):
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "0.3")
    whole = run(short(rounds=8), store)[-1].run_id
    steps = going(shared)
    while next(steps).round < 3:
        pass
    server.stop()
    try:
        if at == "the end":
            with pytest.raises(Unreachable, match="5 of its rounds are kept") as told:
                list(steps)
            assert PASSWORD not in str(told.value)
        else:
            while next(steps).round < 6:
                pass
            steps.close()
        assert len(left(tmp_path, "spool")) == 1
    finally:
        server.start()
    assert rows(shared, "SELECT max(round) FROM round") == [(3,)]
    with shared.begin() as connection:
        connection.exec_driver_sql(STALE)
    assert runs.find(shared, 1).status == "interrupted"
    again = list(going(shared))
    assert [step.kind for step in again[:1]] == (["exists"] if at == "the end" else ["resumed"])
    assert again[0].round == (8 if at == "the end" else 6)
    assert same(store, whole, shared, 1)
    assert left(tmp_path, "spool") == []


KILLED = """
import sys, time
from pathlib import Path
from support.runs import short
from pflbench.run.execution import Execution
from pflbench.run.loop import execute
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)])}
    child = subprocess.Popen([sys.executable, "-c", KILLED, url, folder], stdout=subprocess.PIPE, text=True, env=environment)
    while child.stdout.readline().strip() != "4":
        pass
    with pytest.raises(Occupied, match=f"process {child.pid}"):
        next(going(shared, checkpoints=folder))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with shared.begin() as connection:
        connection.exec_driver_sql(STALE)
    again = list(going(shared, checkpoints=folder))
    assert (again[0].kind, again[0].round) == ("resumed", 4)
    assert same(store, whole, shared, 1)
    assert list(Path(folder).iterdir()) == []


def test_a_worker_that_was_cut_off_leaves_its_run_to_the_other(shared):
    steps = going(shared)
    while next(steps).round < 3:
        pass
    with shared.begin() as connection:
        connection.exec_driver_sql(STALE)
    other = going(shared)
    assert next(other).kind == "resumed"
    with pytest.raises(Occupied, match="taken this run over"):
        next(steps)
    assert list(other)[-1].kind == "finished"
    assert rows(shared, "SELECT status, (SELECT count(*) FROM round) FROM run") == [("finished", 9)]


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_checkpoints_in_a_place_of_ones_own(store, tmp_path, kind):
    where = {"folder": str(tmp_path / "own"), "file": f"file://{tmp_path}/own", "memory": "memory://own/deep"}[kind]
    whole = run(short(), store)[-1].run_id
    steps = execute(short(), store, Path("data"), Execution(workers=1, checkpoints=where), force=True)
    while next(steps).round < 2:
        pass
    steps.close()
    assert list(tmp_path.glob("*.checkpoints/*.pt")) == []
    place, name = places.place_of(store.url, where), places.name_of(runs.find(store, 2), store.url, where)
    with place.read(f"{name}.pt") as found:
        assert len(found.read()) > 1000
    resumed = run(short(), store, checkpoints=where)
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
