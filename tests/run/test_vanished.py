"""A database that goes away under a run, and runs that go away in it: nothing is lost, and nothing is written to others."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.cases import rest_slow
from support.command import Done, Shell, assert_refused, finish, start
from support.runs import by_key, numbers, rows, run, short
from support.store_samples import python

from pflbench.errors import Occupied, Vanished
from pflbench.run.execution import Execution
from pflbench.run.loop import execute
from pflbench.run.pack import execute_pack
from pflbench.store import database as db

Wreck = Callable[[Path], Any]
RUN = ("run", "-m", "fedavg", "-d", "digits", "--clients", "4", "--rounds", "60", "-q", "--db", "d/results.db")
PACKED = Execution(engine="batched", pack=3, chunk=100)
REACHED = 10  # rounds, when something is done to the database


def removed(database: Path) -> None:
    for each in database.parent.glob(f"{database.name}*"):
        if each.is_file():
            each.unlink()


def moved(database: Path) -> None:
    database.rename(database.with_name("elsewhere.db"))


def replaced(database: Path) -> None:
    shutil.copy(database.with_name("other.db"), database.with_name("new.db"))
    database.with_name("new.db").replace(database)


def without_log(database: Path) -> None:
    database.with_name(f"{database.name}-wal").unlink()


def without_index(database: Path) -> None:
    database.with_name(f"{database.name}-shm").unlink()


def content(path: Path) -> list[Any]:
    """All rows of all tables; the database is whole."""
    with closing(sqlite3.connect(path)) as c:
        assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in c.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [(name, c.execute(f'SELECT * FROM "{name}"').fetchall()) for name in names]


def until(store: sa.Engine, reached: int, wreck: Wreck, *, then: type[BaseException] = Vanished) -> BaseException:
    """A run to which something happens when it has reached a round."""

    def made() -> None:
        for step in execute(short(), store, Path("data"), Execution(workers=1)):
            if step.kind == "round" and step.round == reached:
                wreck(Path(str(store.url.database)))

    with pytest.raises(then) as caught:
        made()
    return caught.value


@pytest.mark.parametrize("wreck", rest_slow([removed, moved, replaced, without_log, without_index], removed, replaced))
def test_all_that_was_in_it_is_kept(store, wreck, tmp_path, new_database):
    whole = run(short(seed=1), store)[-1].run_id
    expected = numbers(store, whole)
    other = tmp_path / "other.db"
    shutil.copy(new_database, other)
    before = content(other)
    told = until(store, 2, wreck)
    kept = tmp_path / "results.rescued.db"
    assert told.kept == kept
    assert len(str(told).splitlines()) == 2
    assert f"pflbench import {kept}" in str(told)
    assert (f"`mv {kept} {tmp_path / 'results.db'}`" in str(told)) == (wreck in (removed, moved))
    found = db.connect_read_only(db.to_url(str(kept)))
    assert rows(found, "SELECT seed, status, (SELECT count(*) FROM round WHERE run_id = run.id) FROM run ORDER BY id") == [
        (1, "finished", 5),
        (0, "interrupted", 4),  # with the round that was under way
    ]
    assert numbers(found, whole) == expected
    found.dispose()
    assert content(other) == before
    store.dispose()
    if wreck is replaced:
        assert content(tmp_path / "results.db") == before
    if wreck is moved:  # whole in itself, too
        assert dict(content(tmp_path / "elsewhere.db"))["run"][1][4] == "running"


@pytest.mark.slow
@pytest.mark.parametrize("wreck", [removed, without_log])
def test_behind_a_link(wreck, tmp_path, new_database):
    """SQLite's files lie beside the database, not beside the link, and so do checkpoints: there it can go on."""
    (tmp_path / "real").mkdir()
    shutil.copy(new_database, tmp_path / "real" / "results.db")
    (tmp_path / "results.db").symlink_to(tmp_path / "real" / "results.db")
    store = db.connect(db.to_url(str(tmp_path / "results.db")))
    told = until(store, 2, lambda link: wreck(link.resolve()))
    store.dispose()
    assert told.kept == tmp_path / "real" / "results.rescued.db"
    if wreck is removed:
        told.kept.rename(tmp_path / "real" / "results.db")
        assert f"`mv {told.kept} {tmp_path / 'real' / 'results.db'}`" in str(told)
        again = db.connect(str(store.url))
        assert run(short(), again)[0].kind == "resumed"
        again.dispose()


IMPORTED = """
import sys
from pflbench.store import database as db, write
from support.store_samples import make_record, make_spec, write_round
engine = db.connect(sys.argv[1])
run = write.create_run(engine, make_spec(seed=7, rounds=3), {})
for t in range(4):
    write_round(engine, run, make_record(t))
engine.dispose()
"""


@pytest.mark.slow
def test_what_others_have_written_behind_a_lost_log_stays(store, tmp_path):
    """A process that has opened the file anew, and is over, has left it whole. The old log would put older pages there."""
    after = []

    def wreck(database: Path) -> None:
        without_log(database), without_index(database)
        done = python(IMPORTED, str(store.url))
        assert done.wait() == 0
        after.append(database.read_bytes())

    until(store, 2, wreck)
    store.dispose()
    assert (tmp_path / "results.db").read_bytes() == after[0]


@pytest.mark.parametrize("reached", rest_slow([0, 2, 4], 2))
def test_put_back_it_goes_on(store, reached, tmp_path):
    """Also where the last thing that is written is that the run has finished."""
    told = until(store, reached, removed)
    store.dispose()
    told.kept.rename(tmp_path / "results.db")
    again = db.connect(str(store.url))
    resumed = run(short(), again)
    assert resumed[0].kind == ("exists" if reached == 4 else "resumed")
    whole = run(short(), again, force=True)[-1].run_id
    assert numbers(again, 1) == numbers(again, whole)
    assert list(tmp_path.glob("*.checkpoints/*")) == []
    again.dispose()


def test_ctrl_c_behind_it(store, tmp_path):
    steps = execute(short(), store, Path("data"), Execution(workers=1))
    while next(steps).round < 2:
        pass
    removed(tmp_path / "results.db")
    with pytest.raises(Vanished) as told:
        steps.throw(KeyboardInterrupt)
    found = db.connect_read_only(db.to_url(str(told.value.kept)))
    assert rows(found, "SELECT status, (SELECT count(*) FROM round) FROM run") == [("interrupted", 3)]
    found.dispose()


def test_closed_behind_it(store, tmp_path):
    """As by a signal that comes between two steps: whoever closes is told."""
    steps = execute_pack([short()], store, Path("data"), Execution(engine="loop", workers=1))
    while next(steps)[1].round < 2:
        pass
    removed(tmp_path / "results.db")
    with pytest.raises(Vanished):
        steps.close()


@pytest.mark.slow
def test_a_pack_is_kept_in_one_file(store, tmp_path):
    specs = [short("fedavg", seed=seed) for seed in range(3)]
    told = {}

    def made() -> None:
        for number, step in execute_pack(specs, store, Path("data"), PACKED):
            if step.kind == "round":
                told[number] = step.round
                if step.round == 2:
                    removed(tmp_path / "results.db")

    with pytest.raises(Vanished):
        made()
    (kept,) = tmp_path.glob("*.rescued*")
    found = db.connect_read_only(db.to_url(str(kept)))
    stored = rows(found, "SELECT seed, status, (SELECT max(round) FROM round WHERE run_id = run.id) FROM run ORDER BY seed")
    assert {status for _, status, _ in stored} == {"interrupted"}
    assert all(last >= told[seed] for seed, _, last in stored)
    assert any(last > told[seed] for seed, _, last in stored), "the one that found out had its round with it"
    found.dispose()


def test_its_folder_is_moved(store, tmp_path, monkeypatch):
    """The old folder is not made anew, for a checkpoint: the moved one could not take its place again."""
    inner, here = tmp_path / "inner", tmp_path / "here"
    inner.mkdir(), here.mkdir()
    monkeypatch.chdir(here)
    shutil.copy(str(store.url.database), inner / "results.db")
    other = db.connect(db.to_url(str(inner / "results.db")))
    told = until(other, 2, lambda database: database.parent.rename(tmp_path / "moved"))
    assert told.kept == here / "results.rescued.db"
    assert "`mv " not in str(told)
    other.dispose()
    assert not inner.exists()
    (tmp_path / "moved").rename(inner)
    back = db.connect(db.to_url(str(inner / "results.db")))
    assert run(short(), back)[-1].kind == "finished"
    assert run(short(), store)[-1].kind == "finished"
    assert numbers(back, 1) == numbers(store, 1)
    back.dispose()


def changed(statement: str) -> Wreck:
    """By another program, which knows no locks of ours."""

    def wreck(database: Path) -> None:
        with closing(sqlite3.connect(database)) as c:
            c.execute("PRAGMA foreign_keys=ON")
            c.executescript(statement)

    return wreck


OTHERS = (
    "CREATE TEMP TABLE t AS SELECT * FROM run; DELETE FROM run; UPDATE t SET key = '0123456789abcdef', status = 'finished'; "
    "INSERT INTO run SELECT * FROM t"
)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM run", "Run 1 has been removed from"),
        (OTHERS, "Run 1 has been removed from"),
        ("UPDATE run SET started_at = '2030-01-01T00:00:00Z'", "has been begun by another process"),
    ],
)
@pytest.mark.parametrize("reached", rest_slow([0, 4], 0))
def test_nothing_is_written_to_a_run_that_is_not_its_own(store, statement, says, reached):
    """Neither a round nor how it ended."""
    after: list[Any] = []

    def wreck(database: Path) -> None:
        changed(statement)(database)
        after.append(content(database))

    told = until(store, reached, wreck, then=Occupied)
    assert says in str(told)
    assert content(Path(str(store.url.database))) == after[0]


def test_nothing_is_rewound_of_a_run_that_is_not_its_own(store, monkeypatch):
    """Nor is it marked as running: another process has begun it since its row was read."""
    from pflbench.run import record

    steps = execute(short(), store, Path("data"), Execution(workers=1))
    while next(steps).round < 2:
        pass
    steps.close()
    before = content(Path(str(store.url.database)))
    monkeypatch.setattr(record, "mark_of", lambda row, of=record.mark_of: of(row).replace("/1/", "/2/"))
    with pytest.raises(Occupied):
        run(short(), store)
    assert content(Path(str(store.url.database))) == before


@pytest.mark.slow
def test_of_a_pack_the_others_go_on(store, tmp_path):
    specs = [short("fedavg", seed=seed) for seed in range(3)]
    told = []
    for number, step in execute_pack(specs, store, Path("data"), PACKED):
        told.append((number, step))
        if number == 2 and not isinstance(step, Occupied) and (step.kind, step.round) == ("round", 1):
            changed("DELETE FROM run WHERE seed = 1")(tmp_path / "results.db")
    assert [number for number, step in told if isinstance(step, Occupied)] == [1]
    assert rows(store, "SELECT seed, status, (SELECT count(*) FROM round WHERE run_id = run.id) FROM run") == [
        (0, "finished", 5),
        (2, "finished", 5),
    ]


# -- with processes of their own ------------------------------------------------------------------------------------------


def reached(database: Path, runs: int) -> bool:
    """Whether so many runs have made REACHED rounds."""
    if not database.exists():
        return False
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as c:
        try:
            found = c.execute("SELECT run_id FROM round WHERE round >= ? GROUP BY run_id", (REACHED,)).fetchall()
        except sqlite3.OperationalError:  # its tables are being made
            return False
        return len(found) >= runs


def wrecked(folder: Path, wreck: Wreck, *more: str, runs: int = 1, send: int = 0) -> Done:
    """A command to whose database something happens when its runs are under way."""
    (folder / "d").mkdir(exist_ok=True)
    process: subprocess.Popen[str] = start(*RUN, *more, folder=folder)
    try:
        while not reached(folder / "d" / "results.db", runs) and process.poll() is None:
            time.sleep(0.01)
        wreck(folder / "d" / "results.db")
        if send:
            process.send_signal(send)
    except BaseException:
        process.kill()
        raise
    return finish(process)


@pytest.mark.slow
@pytest.mark.parametrize(("wreck", "more"), [(moved, ()), (removed, ("--jobs", "2", "--seeds", "0,1"))])
def test_a_command_goes_on_once_its_database_is_put_back(wreck, more, tmp_path, shell: Shell):
    """With exactly the rows of one that nothing happened to. Workers keep theirs in one file."""
    done = wrecked(tmp_path, wreck, *more, runs=2 if more else 1)
    assert_refused(done)
    assert done.err.count("Error: ") == 1, done.err
    (kept,) = (tmp_path / "d").glob("*.rescued*")
    assert "puts it back" in shell.refused("runs", "list", "--db", "d/results.db")
    kept.rename(tmp_path / "d" / "results.db")
    resumed = finish(start(*RUN[:-3], *RUN[-2:], *more, folder=tmp_path))
    assert resumed.code == 0, resumed.err
    assert finish(start(*RUN[:-1], "whole.db", *more, folder=tmp_path)).code == 0
    engines = [db.connect(db.to_url(str(tmp_path / name))) for name in ("d/results.db", "whole.db")]
    found, expected = map(by_key, engines)
    assert found == expected
    assert len(found) == (2 if more else 1)
    for engine in engines:
        engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, signal.SIGTERM])
def test_import_takes_what_was_kept(number, tmp_path, shell: Shell):
    done = wrecked(tmp_path, removed, send=number)
    assert done.code == (128 + number if number else 2), done.err
    assert "Traceback" not in done.err
    (kept,) = (tmp_path / "d").glob("*.rescued*")
    assert f"pflbench import {kept}" in done.err
    assert shell("import", str(kept), "--db", "new.db").code == 0
    with closing(sqlite3.connect("new.db")) as c:
        ((status, count),) = c.execute("SELECT status, (SELECT count(*) FROM round) FROM run").fetchall()
    assert status == "interrupted"
    assert count > REACHED
