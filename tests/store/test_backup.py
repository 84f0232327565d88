"""Backups while runs go on writing: the whole of one moment, or nothing."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell, parsed
from support.postgres import Server
from support.store_samples import make_partition, make_record, make_spec, python, write_round

from pflbench.store import database as db
from pflbench.store import inspection, partitions, write

TABLES = ("partition", "run", "round", "client_round", "series", "artifact")
CLIENTS, ROUNDS, RUNS = 20, 30, 6
Row = tuple[Any, ...]


def fill(engine: Engine) -> None:
    held = np.ones((CLIENTS, 2), dtype=np.int64)
    partition = partitions.save(engine, make_partition(train=held, test=held, indices=None))
    for seed in range(RUNS):
        run = write.create_run(engine, make_spec(seed=seed, rounds=ROUNDS, clients=CLIENTS), {"notes": {"n": "x" * 500}})
        for t in range(ROUNDS + 1):
            arrays = {"weights": np.random.default_rng(t).random(100)}
            write_round(engine, run, make_record(t, clients=CLIENTS, artifacts=arrays, series={"global": (0.5, 1.0)}))
        write.update_run(engine, run, status="finished", partition_id=partition)


def content(path: Path) -> dict[str, set[Row]]:
    connection = sqlite3.connect(path)
    try:
        return {table: set(connection.execute(f'SELECT * FROM "{table}"')) for table in TABLES}
    finally:
        connection.close()


@pytest.fixture(scope="module")
def whole(new_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six finished runs, in one file."""
    path = tmp_path_factory.mktemp("whole") / "results.db"
    shutil.copy(new_database, path)
    engine = db.connect(db.to_url(str(path)))
    fill(engine)
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
            rounds = sorted(row[1] for row in content(Path(f"{i}.db"))["round"] if row[0] == RUNS + 1)
            assert rounds == list(range(len(rounds)))
            assert len(rounds) > last
            last = len(rounds)
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def damage_page(path: Path, rng: random.Random, pages: int) -> None:
    """Noise in place of whole pages, of any but the first, which has the list of tables."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for page in rng.sample(range(1, len(data) // size), pages):
        data[page * size : (page + 1) * size] = rng.randbytes(size)
    path.write_bytes(data)


def test_a_backup_replaces_nothing_and_leaves_nothing(whole: Path, tmp_path: Path, shell: Shell) -> None:
    shutil.copy(whole, "pflbench.db")
    (tmp_path / "there.db").write_text("mine")
    assert "already exists" in shell.refused("db", "backup", "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert "No folder" in shell.refused("db", "backup", "missing/new.db")
    assert "No results yet" in shell.refused("db", "backup", "new.db", "--db", "missing.db")
    damage_page(tmp_path / "pflbench.db", random.Random(1), 8)
    assert ".recover" in shell.refused("db", "backup", "new.db")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))) == [
        "pflbench.db",
        "there.db",
    ]


@pytest.mark.slow
def test_a_server_is_backed_up_into_a_file(engine: Engine, server: Server, tmp_path: Path, shell: Shell) -> None:
    fill(engine)
    engine.dispose()
    url = server.new(filled=False)
    assert shell("db", "copy", "results.db", url).code == 0
    assert parsed(shell("db", "backup", "new.db", "--db", url, "--json"))["runs"] == {"finished": RUNS}
    found, original = content(tmp_path / "new.db"), content(tmp_path / "results.db")
    assert all(found[table] == original[table] for table in ("round", "client_round", "series"))
    assert not list(tmp_path.glob(".new.db*"))
    server.drop(url)
