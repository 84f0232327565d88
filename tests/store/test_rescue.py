"""Backups while runs go on writing, and what is saved of a damaged file."""

from __future__ import annotations

import fcntl
import random
import shutil
import signal
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine
from support.cases import rest_slow
from support.command import Shell, parsed
from support.postgres import Server
from support.store_samples import make_partition, make_record, make_spec, python, write_round

from pflbench.errors import UserError
from pflbench.store import database as db
from pflbench.store import inspection, journal, partitions, write
from pflbench.store import repair as repairing
from pflbench.store.exchange import backup
from pflbench.store.repair import repair

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


# -- backup -------------------------------------------------------------------------------------------------------------


def test_a_backup_is_one_moment_and_nobody_waits_for_it(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its steps rounds are committed, to pages that are copied already and to those that are not."""
    run = write.create_run(engine, make_spec(rounds=1000, clients=CLIENTS), {})
    for t in range(100):
        write_round(engine, run, make_record(t, clients=CLIENTS))
    monkeypatch.setattr(backup, "_PAGES", 2)
    later = iter(range(100, 1000))

    def between(done: int, pages: int) -> None:
        write_round(engine, run, make_record(next(later), clients=CLIENTS))

    target = tmp_path / "backup.db"
    backup.backup(db.to_url(str(engine.url.database)), target, between)
    written = next(later)
    assert written > 110
    found = content(target)
    assert sorted(row[1] for row in found["round"]) == list(range(100))
    assert len(found["client_round"]) == 100 * CLIENTS
    assert inspection.check(db.to_url(str(target))) == []
    assert len(content(Path(str(engine.url.database)))["round"]) == written


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


@pytest.mark.slow
def test_backups_beside_a_process_that_writes(whole: Path, tmp_path: Path, shell: Shell) -> None:
    shutil.copy(whole, tmp_path / "pflbench.db")
    process = python(WRITE, db.to_url(str(tmp_path / "pflbench.db")))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        last = 0
        for i in range(10):
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


def test_a_backup_replaces_nothing_and_leaves_nothing(whole: Path, tmp_path: Path, shell: Shell) -> None:
    shutil.copy(whole, "pflbench.db")
    (tmp_path / "there.db").write_text("mine")
    assert "is there already" in shell.refused("db", "backup", "there.db")
    assert (tmp_path / "there.db").read_text() == "mine"
    assert "No folder" in shell.refused("db", "backup", "missing/new.db")
    assert "No results yet" in shell.refused("db", "backup", "new.db", "--db", "missing.db")
    damage_page(tmp_path / "pflbench.db", random.Random(1), 8)
    assert "db repair" in shell.refused("db", "backup", "new.db")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm"))) == [
        "pflbench.db",
        "there.db",
    ]


@pytest.mark.parametrize("make", rest_slow([backup.backup, repair], backup.backup))
def test_locks_of_files_that_sqlites_own_meet(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """As on NFS, where `flock` is a lock of all bytes, by whoever has opened the file. Waiting would not end."""

    def flock(file: Any, operation: int) -> None:
        kind = fcntl.F_RDLCK if operation & fcntl.LOCK_SH else fcntl.F_WRLCK
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for itself"))
    signal.alarm(10)
    try:
        make(db.to_url(str(whole)), tmp_path / "new.db")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert content(tmp_path / "new.db") == content(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]


# -- repair -------------------------------------------------------------------------------------------------------------


def damage_page(path: Path, rng: random.Random, pages: int) -> None:
    """Noise in place of whole pages, of any but the first, which has the list of tables."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for page in rng.sample(range(1, len(data) // size), pages):
        data[page * size : (page + 1) * size] = rng.randbytes(size)
    path.write_bytes(data)


def flip(path: Path, rng: random.Random, bytes_: int) -> None:
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for at in rng.sample(range(size, len(data)), bytes_):
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random, _: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(rng.randrange(size * 3 // 4, size))


def repaired(whole: Path, tmp_path: Path, damage: Any, seed: int, amount: int) -> tuple[dict[str, set[Row]], list[str]]:
    path, target = tmp_path / f"damaged{seed}.db", tmp_path / f"new{seed}.db"
    shutil.copy(whole, path)
    damage(path, random.Random(seed), amount)
    before = path.read_bytes()
    told, problems = repair(db.to_url(str(path)), target)
    assert path.read_bytes() == before
    found = content(target)
    assert {table: len(rows) for table, rows in found.items()} == {table: told.rows[table] for table in TABLES}
    runs = {row[0] for row in found["run"]}
    assert {row[0] for table in ("round", "client_round", "series") for row in found[table]} <= runs
    for row in found["run"]:
        rounds = sum(of[0] == row[0] for of in found["round"])
        assert (row[4] == "finished") <= (rounds == ROUNDS + 1)
    with sqlite3.connect(target) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    return found, problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "amount", "least"), [(damage_page, 1, 0.9), (damage_page, 4, 0.5), (flip, 30, 0.9), (truncate, 0, 0.5)]
)
def test_what_can_be_read_of_a_damaged_file_is_saved(whole: Path, tmp_path: Path, damage: Any, amount: int, least: float) -> None:
    original = content(whole)
    shares, told = [], []
    for seed in range(12):
        try:
            found, _ = repaired(whole, tmp_path, damage, seed, amount)
        except UserError as error:
            told.append(error.hint)
            shares.append(0.0)
            continue
        if damage is not flip:  # of a page that is gone nothing is made up: rows are as they were
            for table in ("round", "client_round", "series", "artifact"):
                assert found[table] <= original[table]
        shares.append(sum(map(len, found.values())) / sum(map(len, original.values())))
    print(damage.__name__, amount, [f"{share:.2f}" for share in shares])
    assert np.median(shares) > least
    assert all("list of its tables" in hint for hint in told)
    assert len(told) <= 3


def test_a_sound_file_is_saved_as_it_is(whole: Path, tmp_path: Path, shell: Shell) -> None:
    shutil.copy(whole, "pflbench.db")
    told = parsed(shell("db", "repair", "-o", "new.db", "--json"))
    assert (told["lost"], told["changed"], told["problems"]) == ([], [], [])
    assert content(tmp_path / "new.db") == content(whole)
    assert "is there already" in shell.refused("db", "repair", "-o", "new.db")
    assert "no database at" in shell.refused("db", "repair", "-o", "other.db", "--db", "missing.db")
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at" * 30)
    assert "can be read" in shell.refused("db", "repair", "-o", "other.db", "--db", "text.db")
    assert not (tmp_path / "other.db").exists()


def test_a_file_is_saved_as_it_is_at_one_moment(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each table is read, a run writes one more round."""
    run = write.create_run(engine, make_spec(rounds=ROUNDS), {})
    later, copied = iter(range(ROUNDS)), repairing._Rescue._copy
    write_round(engine, run, make_record(next(later)))

    def beside(self: Any, table: str, rows: Any) -> None:
        write_round(engine, run, make_record(next(later)))
        copied(self, table, rows)

    monkeypatch.setattr(repairing._Rescue, "_copy", beside)
    told, problems = repair(db.to_url(str(engine.url.database)), tmp_path / "new.db")
    assert (told.lost, told.changed, problems, told.rows["round"]) == ([], [], [], 1)


@pytest.mark.parametrize("more", rest_slow([b"", b"torn"], b""))
def test_a_transaction_that_was_killed_is_undone(whole: Path, tmp_path: Path, more: bytes) -> None:
    """Of a rollback journal: the file has half of what was written, the journal what was there before."""
    path = tmp_path / "killed.db"
    shutil.copy(whole, tmp_path / "other.db")
    journal.change(tmp_path / "other.db", journal.ROLLBACK)
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=2")
        connection.execute("BEGIN")
        connection.execute("UPDATE client_round SET correct = 0")
        path.write_bytes((tmp_path / "other.db").read_bytes() + more)
        shutil.copy(tmp_path / "other.db-journal", f"{path}-journal")
    assert path.read_bytes()[20:] != whole.read_bytes()[20:]
    before = [(tmp_path / name).read_bytes() for name in ("killed.db", "killed.db-journal")]
    told, problems = repair(db.to_url(str(path)), tmp_path / "new.db")
    assert (told.lost, told.changed, problems) == ([], [], [])
    assert content(tmp_path / "new.db") == content(whole)
    assert [(tmp_path / name).read_bytes() for name in ("killed.db", "killed.db-journal")] == before


def test_a_locked_file_is_not_called_damaged(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairing, "BUSY_SECONDS", 0.05)
    shutil.copy(whole, tmp_path / "locked.db")
    journal.change(tmp_path / "locked.db", journal.ROLLBACK)
    with closing(sqlite3.connect(tmp_path / "locked.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="has been locked by another process"):
            repair(db.to_url(str(tmp_path / "locked.db")), tmp_path / "new.db")


DAMAGES = {
    "DELETE FROM round WHERE run_id = 2 AND round = 30": "run 2: interrupted, no longer finished: 30 of 31 rounds",
    "DELETE FROM round WHERE run_id = 2 AND round = 29": "client_round: 20 rows whose round is not there",
    "UPDATE run SET seed = 9 WHERE id = 3": "run 3: seed was 9, is 2",
    "UPDATE run SET key = 'abc' WHERE id = 3": "run 3: key was 'abc', is ",
    "UPDATE run SET status = 'soap' WHERE id = 3": "run 3: status was 'soap', is 'interrupted'",
    "DELETE FROM partition": "run 1: its partition 1 is not there",
    "UPDATE run SET environment = '{' WHERE id = 4": "run 4: its record was no JSON",
    "UPDATE run SET spec = '{' WHERE id = 4": "run 4: spec is no JSON",
}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "told"), DAMAGES.items())
def test_what_follows_from_other_rows_is_derived_again(whole: Path, tmp_path: Path, damage: str, told: str) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")
        connection.execute(damage)
    connection.close()
    saved, problems = repair(db.to_url(str(path)), tmp_path / "new.db")
    assert any(told in line for line in (*saved.lost, *saved.changed)), saved
    gaps = [line for line in problems if "round 29: missing" not in line]
    assert gaps == []


def test_what_could_be_either_is_left_and_named(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE round SET accuracy = 0.999 WHERE run_id = 2 AND round = 3")
        connection.execute("UPDATE run SET key = 'abc', seed = 99 WHERE id = 3")
    connection.close()
    saved, problems = repair(db.to_url(str(path)), tmp_path / "new.db")
    assert (saved.lost, saved.changed) == ([], [])
    assert any("run 2, round 3: accuracy is 0.999" in line for line in problems)
    assert any("run 3: its key abc" in line for line in problems)


def test_numbers_are_not_given_out_again_in_what_was_saved(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    engine = db.connect(db.to_url(str(path)))
    write.remove_run(engine, RUNS)
    engine.dispose()
    repair(db.to_url(str(path)), tmp_path / "new.db")
    assert write.create_run(db.connect(db.to_url(str(tmp_path / "new.db"))), make_spec(seed=50), {}) == RUNS + 1


@pytest.mark.slow
def test_a_server_is_backed_up_into_a_file(engine: Engine, server: Server, tmp_path: Path, shell: Shell) -> None:
    fill(engine)
    engine.dispose()
    url = server.new(filled=False)
    assert shell("db", "copy", "results.db", url).code == 0
    assert parsed(shell("db", "backup", "new.db", "--db", url, "--json"))["runs"] == {"finished": RUNS}
    found, original = content(tmp_path / "new.db"), content(tmp_path / "results.db")
    assert all(found[table] == original[table] for table in ("round", "client_round", "series"))
    assert "Only an SQLite file" in shell.refused("db", "repair", "-o", "other.db", "--db", url)
    assert "no SQLite file" in shell.refused("db", "journal", "--db", url)
    assert not list(tmp_path.glob(".new.db*"))
    server.drop(url)
