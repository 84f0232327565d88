"""Backups while runs go on writing: the whole of one moment, or nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import Shell, parsed, rows
from support.postgres import Server
from support.store_samples import add_run, make_spec, python

from pflbench.store import database as db
from pflbench.store import inspection

ROUNDS, RUNS = 30, 6


@pytest.fixture(scope="module")
def whole(new_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six finished runs, in one file."""
    path = shutil.copy(new_database, tmp_path_factory.mktemp("whole"))
    engine = db.connect(db.to_url(str(path)))
    for seed in range(RUNS):
        add_run(engine, make_spec(seed=seed, rounds=ROUNDS), ROUNDS)
    engine.dispose()
    return path


WRITE = """
import sys
from pflbench.store import database as db, write
from support.store_samples import make_record, make_spec, write_round
engine = db.connect(sys.argv[1])
run = write.create_run(engine, make_spec(seed=77, rounds=100_000, clients=20), {})
t = 0
while True:
    write_round(engine, run, make_record(t, clients=20))
    t += 1
    if t == 20:
        print("under way", flush=True)
"""


def test_a_backup_is_one_moment_of_a_database_that_another_process_writes_to(whole: Path, tmp_path: Path, shell: Shell) -> None:
    shutil.copy(whole, tmp_path / "pflbench.db")
    process = python(WRITE, db.to_url(str(tmp_path / "pflbench.db")))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        last = 0
        for i in range(3):
            assert parsed(shell("db", "backup", f"{i}.db", "--json"))["runs"] == {"finished": RUNS, "queued": 1}
            assert inspection.check(db.to_url(f"{i}.db")) == []
            rounds = [t for (t,) in rows(f"SELECT round FROM round WHERE run_id = {RUNS + 1} ORDER BY round", f"{i}.db")]
            assert rounds == list(range(len(rounds)))
            assert len(rounds) > last
            last = len(rounds)
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def test_a_backup_replaces_nothing_and_leaves_nothing(
    whole: Path, tmp_path: Path, shell: Shell, damage: Callable[[Path], None]
) -> None:
    shutil.copy(whole, "pflbench.db")
    (tmp_path / "there.db").write_text("mine")
    assert "already exists" in shell.refused("db", "backup", "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert "No folder" in shell.refused("db", "backup", "missing/new.db")
    assert "No results yet" in shell.refused("db", "backup", "new.db", "--db", "missing.db")
    damage(tmp_path / "pflbench.db")
    assert ".recover" in shell.refused("db", "backup", "new.db")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))) == [
        "pflbench.db",
        "there.db",
    ]


@pytest.mark.slow
def test_a_server_is_backed_up_into_a_file(server: Server, tmp_path: Path, shell: Shell) -> None:
    """With its rows: that they are the same is `db copy`'s."""
    engine = db.connect(url := server.new())
    add_run(engine, make_spec())
    engine.dispose()
    assert parsed(shell("db", "backup", "new.db", "--db", url, "--json"))["runs"] == {"finished": 1}
    assert inspection.check(db.to_url("new.db")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]
    server.drop(url)
