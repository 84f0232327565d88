"""Databases and result files from strangers: sound but for what is planted, which must be named and keep all of it out."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.command import Shell
from support.raw_sql import sql
from support.store_samples import add_run, make_spec

from pflbench.store import database as db
from pflbench.store.exchange import merge


@pytest.fixture(scope="module")
def sound(new_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two finished runs of three rounds and a reference series."""
    path = Path(shutil.copy(new_database, tmp_path_factory.mktemp("sound") / "other.db"))
    engine = db.connect(db.to_url(str(path)))
    for seed in (0, 1):
        add_run(engine, make_spec(seed=seed))
    engine.dispose()
    file = "INSERT INTO reference_run VALUES (1, ?, 'a.h5', 'mnist', 'fedavg', 'FedAvg', 'test', 0, '2026-01-02T03:04:05Z')"
    sql(path, file, "e" * 64)
    sql(path, "INSERT INTO reference_round VALUES (1, 0, 0.5, NULL, 2.0)")
    return path


@pytest.fixture
def other(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "other.db"))


@pytest.fixture
def mine(new_database: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = db.connect(db.to_url(str(shutil.copy(new_database, tmp_path / "pflbench.db"))))
    yield engine
    engine.dispose()


def runs_here(engine: Engine) -> int:
    return len(sql(engine, "SELECT id FROM run"))


AT = "run_id = 2 AND round = 1"
ROUND, CLIENT = "run 2, round 1: ", "run 2, round 1, client 3: "
FRACTION = "expected {0} >= 0 AND {0} <= 1."
SPEC = make_spec(seed=1).model_dump_json()
DEEP = '{"a":' + "[" * 100_000
COUNTS = "partition 1: its classes, counts or indices cannot be read"
PLANTED: list[tuple[str, Any, str]] = [
    # statement, its parameter, what is told
    (f"UPDATE round SET accuracy = ? WHERE {AT}", float("inf"), ROUND + "accuracy is Inf; " + FRACTION.format("accuracy")),
    (f"UPDATE round SET accuracy = ? WHERE {AT}", 0.5, ROUND + "accuracy is 0.5, and 0.1 by its clients."),
    (f"UPDATE round SET test_loss = ? WHERE {AT}", -float("inf"), ROUND + "test_loss is -Inf; expected a finite number."),
    (f"UPDATE round SET seconds_update = ? WHERE {AT}", -1.0, ROUND + "seconds_update is -1.0; expected seconds_update >= 0."),
    (f"UPDATE round SET bytes_up = ? WHERE {AT}", 1.5, ROUND + "bytes_up is 1.5; expected a whole number."),
    (f"UPDATE round SET participants = ? WHERE {AT}", 5, ROUND + "5 participants; the run has 4 clients."),
    (f"DELETE FROM round WHERE {AT} AND 1 = ?", 1, ROUND + "missing; the run is finished, with 3 of 4 rounds."),
    ("UPDATE round SET round = ? WHERE run_id = 2 AND round = 3", 4, "run 2, round 4: the run has 3 rounds."),
    (f"UPDATE client_round SET client = ? WHERE {AT} AND client = 3", 77, ROUND + "results of client 77; the run has 4"),
    (f"UPDATE client_round SET correct = ? WHERE {AT} AND client = 3", 41, CLIENT + "correct is 41; expected correct >= 0 AND"),
    (f"UPDATE client_round SET total = 0, correct = ? WHERE {AT}", 0, ROUND + "it has an accuracy or a loss, and its clients"),
    (f"UPDATE client_round SET total = ? WHERE {AT}", 2**62, ROUND + "accuracy is 0.1, and 5.42101e-19 by its clients."),
    ("INSERT INTO new_client VALUES (2, 1, ?, 0, 1, 2, 0.5)", 3, ROUND + "client 3 is a new one, and has results as one that"),
    ("INSERT INTO new_client VALUES (2, 1, ?, 0, 1, 2, 0.5)", 4, ROUND + "results of new client 4; the run has 4 clients"),
    ("INSERT INTO new_client VALUES (2, ?, 9, 0, 1, 2, 0.5)", 9, "run 2, round 9: new clients' results without their round."),
    (f"UPDATE series SET accuracy = ? WHERE {AT}", 50, "run 2, series global, round 1: accuracy is 50.0; " + FRACTION[:8]),
    (f"UPDATE artifact SET shape = ? WHERE {AT}", "[1000000000000]", ROUND + "the array 'weights' cannot be unpacked."),
    ("UPDATE run SET key = ? WHERE id = 2", "0123456789abcdef", "run 2: its key 0123456789abcdef or protocol"),
    ("UPDATE run SET method = ? WHERE id = 2", "fedala", "run 2: method is fedala, and fedavg in its specification."),
    ("UPDATE run SET status = ? WHERE id = 2", "splen\033did", "run 2: status is splen?did; expected status IN ('queued', 'run"),
    ("UPDATE run SET spec = ? WHERE id = 2", SPEC.replace('"lr":0.1', '"lr":0.2'), "or protocol"),
    ("UPDATE run SET spec = ? WHERE id = 2", SPEC.replace('"lr":0.1', '"lr":-1'), "run 2: its specification is invalid"),
    ("UPDATE run SET spec = ? WHERE id = 2", SPEC.replace('"dtype":"float32",', ""), "run 2: its specification is invalid"),
    ("UPDATE run SET environment = ? WHERE id = 2", DEEP, "run 2: its environment is invalid."),
    ("UPDATE run SET environment = ? WHERE id = 2", '{"plugin": 5}', "run 2: its environment is invalid."),
    ("UPDATE partition SET train_counts = ?", "[[3,3],[3,3],[3],[3,3]]", COUNTS),
    ("UPDATE partition SET hash = ?", "f" * 63, "partition 1: its hash is not 64 hexadecimal digits."),
    ("UPDATE partition SET indices = ?", "text", "partition 1: indices is a text; expected binary data."),
    ("UPDATE reference_round SET accuracy = ?", 50.0, "reference_run 1, round 0: accuracy is 50.0; expected a number from"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "value", "told"), PLANTED, ids=[told[-48:] for *_, told in PLANTED])
def test_a_row_that_is_wrong_is_named(mine: Engine, other: Path, shell: Shell, statement: str, value: Any, told: str) -> None:
    sql(other, statement, value)
    said = shell.refused("import", "other.db")
    assert said.startswith("Error: other.db: ")
    assert told in said
    assert "Nothing of it was taken." in said
    assert runs_here(mine) == 0
    checked = shell("db", "check", "--db", "other.db")
    assert (checked.code, told.rstrip(".") in checked.out) == (2, True), "one list of rules"


def test_a_run_that_is_wrong_can_be_left_out(mine: Engine, other: Path, shell: Shell) -> None:
    assert shell("import", "other.db", "--dry-run").out == "other.db (dry run): 2 runs new, 1 reference series\n"
    sql(other, "UPDATE round SET accuracy = 5 WHERE run_id = 2")
    assert "`pflbench runs rm RUN --db COPY` leaves a run out" in shell.refused("import", "other.db")
    assert shell("runs", "rm", "2", "--db", "other.db", "--yes").code == 0
    assert shell("import", "other.db").out == "other.db: 1 run new, 1 reference series\n"


VALUES = "SELECT 2 AS run_id, 'global' AS name, 1 AS round, 0.9 AS accuracy, 0.5 AS test_loss"


DROPPED = "DROP TABLE series"


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        ((DROPPED, f"CREATE VIEW series AS {VALUES}"), "'series' is a view, a virtual table or a trigger"),
        ((DROPPED, "CREATE VIRTUAL TABLE series USING fts5(run_id, name, round, accuracy, test_loss)"), "'series' is a view"),
        ((DROPPED, "CREATE TABLE series (run_id, name, round, accuracy)"), "no column 'test_loss'"),
        ((DROPPED,), "table series: no column 'run_id'"),
        (("CREATE VIEW t AS SELECT 1",), "'t' is a view"),
        (("CREATE TRIGGER t AFTER UPDATE ON pflbench_version BEGIN DELETE FROM run; END",), "'t' is a view"),
    ],
)
def test_only_tables_are_read(mine: Engine, other: Path, shell: Shell, statements: tuple[str, ...], told: str) -> None:
    for statement in statements:
        sql(other, statement)
    assert told in shell.refused("import", "other.db")
    assert runs_here(mine) == 0


def test_another_import_of_the_same_runs_waits(mine: Engine, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins after this one has looked for the run, and before this one writes it."""
    decide, begun = merge._decide, threading.Event()

    def imported() -> list[str]:
        engine = db.connect(str(mine.url))
        with merge.opened(other, engine) as theirs:
            found = [outcome.what for outcome in merge.runs(engine, theirs)]
        engine.dispose()
        return found

    def slowly(*arguments: Any) -> merge.Outcome:
        outcome = decide(*arguments)
        if not begun.is_set():
            begun.set()
            time.sleep(0.5)
        return outcome

    monkeypatch.setattr(merge, "_decide", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(imported)
        begun.wait()
        second = pool.submit(imported)
        assert sorted(first.result() + second.result()) == ["new", "new", "same", "same"]
    assert runs_here(mine) == 2
