"""A database that goes away under a run, and runs that go away in it: it is said, and nothing is written to others."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.cases import rest_slow
from support.command import Shell, assert_refused, finish, parsed, start
from support.runs import count_reached, interrupted, numbers, rows, run, short

from pflbench.errors import Occupied, Vanished
from pflbench.run.execution import Execution
from pflbench.run.pack import execute_pack
from pflbench.run.training import execute
from pflbench.store import database as db
from pflbench.store import write

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


def cut(database: Path) -> None:
    os.truncate(database, database.stat().st_size - 4096)


def cut_log(database: Path) -> None:
    cut(database.with_name(f"{database.name}-wal"))


def emptied(database: Path) -> None:
    """And filled again, by whoever goes on writing: in place."""
    database.write_bytes(b"")


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


WRECKS = {
    removed: r"results\.db is no longer there",
    moved: r"results\.db is no longer there",
    replaced: r"results\.db was replaced by another file",
    cut: r"results\.db was cut short while it was in use: it has [0-9,]+ bytes, and had [0-9,]+",
    emptied: r"results\.db was cut short while it was in use: it has 0 bytes",
    without_log: r"results\.db-wal is no longer there",
    cut_log: r"results\.db-wal was cut short",
}


@pytest.mark.parametrize("wreck", WRECKS)
def test_what_has_become_of_its_file_is_said(store, wreck, tmp_path, new_database):
    """Of what was put in its place nothing is changed."""
    other = Path(shutil.copy(new_database, tmp_path / "other.db"))
    before = content(other)
    told = until(store, 2, wreck)
    assert re.search(WRECKS[wreck], told.message)
    assert len(str(told).splitlines()) == 2
    store.dispose()
    if wreck is replaced:
        assert content(tmp_path / "results.db") == before
    if wreck is moved:
        assert dict(content(tmp_path / "elsewhere.db"))["run"][0][4] == "running"
    assert not list(tmp_path.glob("*rescued*"))


@pytest.mark.parametrize("reached", [2, 4])
def test_put_back_it_goes_on(store, reached, tmp_path):
    """From its checkpoint. Also where the last thing that is written is that the run has finished."""
    until(store, reached, moved)
    store.dispose()
    (tmp_path / "elsewhere.db").rename(tmp_path / "results.db")
    again = db.connect(str(store.url))
    resumed = run(short(), again)
    assert (resumed[0].kind, resumed[0].round) == ("resumed", reached)
    whole = run(short(), again, force=True)[-1].run_id
    assert numbers(again, 1) == numbers(again, whole)
    assert list(tmp_path.glob("*.checkpoints/*")) == []
    again.dispose()


def test_its_folder_is_moved(store, tmp_path):
    """The old folder is not made anew, for a checkpoint: the moved one could not take its place again."""
    inner = tmp_path / "inner"
    inner.mkdir()
    shutil.copy(str(store.url.database), inner / "results.db")
    other = db.connect(db.to_url(str(inner / "results.db")))
    until(other, 2, lambda database: database.parent.rename(tmp_path / "moved"))
    other.dispose()
    assert not inner.exists()
    (tmp_path / "moved").rename(inner)
    back = db.connect(db.to_url(str(inner / "results.db")))
    assert run(short(), back)[-1].kind == "finished"
    assert run(short(), store)[-1].kind == "finished"
    assert numbers(back, 1) == numbers(store, 1)
    back.dispose()


def test_a_file_with_two_names_is_only_read(store, tmp_path, shell: Shell):
    """Each name has a lock and a write-ahead log of its own: two processes would write the file at once."""
    run(short(), store)
    store.dispose()
    os.link(tmp_path / "results.db", tmp_path / "b.db")
    before = content(tmp_path / "results.db")
    for name in ("results.db", "b.db"):
        assert "has 2 names (hard links)" in shell.refused(*RUN[:-1], name)
        assert len(parsed(shell("runs", "list", "--json", "--db", name))) == 1
    assert content(tmp_path / "results.db") == before
    (tmp_path / "b.db").unlink()
    assert shell(*RUN[:-1], "results.db", "--rounds", "1").code == 0


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
    interrupted(short(), store, 2)
    path, after = Path(str(store.url.database)), []

    def whole_rounds(*_):
        changed("UPDATE run SET started_at = '2030-01-01T00:00:00Z'")(path)
        after.append(content(path))
        return 3

    monkeypatch.setattr(write, "whole_rounds", whole_rounds)
    with pytest.raises(Occupied, match="begun by another process"):
        run(short(), store)
    assert content(path) == after[0]


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


@pytest.mark.slow
def test_a_command_whose_workers_lose_it_says_so_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    process = start(*RUN, "--jobs", "2", "--seeds", "0,1", folder=tmp_path)
    while count_reached("d/results.db", REACHED) < 2 and process.poll() is None:
        time.sleep(0.01)
    moved(tmp_path / "d" / "results.db")
    done = finish(process)
    assert_refused(done)
    assert done.err.count("Error: ") == 1, done.err
