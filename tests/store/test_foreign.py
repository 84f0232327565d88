"""Databases and result files from strangers: sound but for what is planted, which must be named and keep all of it out."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from sqlalchemy import Engine
from support.command import Shell, finish, start
from support.store_samples import make_partition, make_record, make_spec, write_round

from alembic import command
from pflbench.spec import RunSpec
from pflbench.store import arrays, partitions, write
from pflbench.store import database as db
from pflbench.store.exchange import foreign, merge


def add_run(engine: Engine, spec: RunSpec) -> None:
    run = write.create_run(engine, spec, {"commit": "abc"})
    partition = make_partition(train=np.full((4, 2), 3), test=np.full((4, 2), 10))
    write.update_run(engine, run, status="finished", partition_id=partitions.save(engine, partition))
    for t in range(spec.train.rounds + 1):
        more = {"series": {"global": (0.5, t / 8)}, "artifacts": {"traffic": np.arange(4)}}
        write_round(engine, run, make_record(t, test_loss=0.5, participants=4, bytes_up=8, **more))


@pytest.fixture(scope="module")
def sound(new_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two finished runs of three rounds and a reference series."""
    path = Path(shutil.copy(new_database, tmp_path_factory.mktemp("sound") / "other.db"))
    engine = db.connect(db.to_url(str(path)))
    for seed in (0, 1):
        add_run(engine, make_spec(seed=seed))
    engine.dispose()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO reference_run VALUES (1, ?, 'a.h5', 'mnist', 'fedavg', 'FedAvg', 'test', 0, '2026-01-02T03:04:05Z')",
        ("e" * 64,),
    )
    connection.execute("INSERT INTO reference_round VALUES (1, 0, 0.5, NULL, 2.0)")
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def other(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / "other.db"))


@pytest.fixture
def mine(new_database: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = db.connect(db.to_url(str(shutil.copy(new_database, tmp_path / "pflbench.db"))))
    yield engine
    engine.dispose()


def change(path: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints=ON")  # a file from anywhere
    connection.execute(statement, values)
    connection.commit()
    connection.close()


def runs_here(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM run").scalar_one())


def test_what_is_sound_is_taken(mine: Engine, other: Path, shell: Shell) -> None:
    assert shell("import", "other.db").out == "other.db: 2 runs new, 1 reference series\n"


AT = "run_id = 2 AND round = 1"
ROUND = "table round, run_id 2, round 1: "
CLIENT = "table client_round, run_id 2, round 1, client 3: "
KEY, PROTOCOL = make_spec(seed=1).key, make_spec(seed=1).protocol
SPEC = make_spec(seed=1).model_dump_json()
DEEP = '{"a":' + "[" * 100_000
PLANTED: list[tuple[str, Any, str]] = [
    # statement, its parameter, what is told
    (f"UPDATE round SET accuracy = ? WHERE {AT}", 5.0, ROUND + "accuracy is 5.0; expected a number from 0 to 1."),
    (f"UPDATE round SET accuracy = ? WHERE {AT}", float("inf"), ROUND + "accuracy is inf; expected a number from 0 to 1."),
    (f"UPDATE round SET accuracy = ? WHERE {AT}", "good", ROUND + "accuracy is 'good'; expected a number"),
    (f"UPDATE round SET accuracy_std = ? WHERE {AT}", -0.5, ROUND + "accuracy_std is -0.5; expected a number from 0 to 1."),
    (f"UPDATE round SET test_loss = ? WHERE {AT}", -float("inf"), ROUND + "test_loss is -inf; expected a finite number."),
    (f"UPDATE round SET seconds_update = ? WHERE {AT}", -1.0, ROUND + "seconds_update is -1.0; expected a finite number"),
    (f"UPDATE round SET bytes_up = ? WHERE {AT}", -3, ROUND + "bytes_up is -3; expected a whole number, at least 0."),
    (f"UPDATE round SET bytes_up = ? WHERE {AT}", 1.5, ROUND + "bytes_up is 1.5; expected a whole number, at least 0."),
    (f"UPDATE round SET participants = ? WHERE {AT}", 5, ROUND + "participants is 5; expected at most the clients of"),
    (f"DELETE FROM round WHERE {AT} AND 1 = ?", 1, "table round, run_id 2: round 1 is missing; expected every round from 0 to 3"),
    ("DELETE FROM round WHERE run_id = 2 AND round = ?", 3, "run_id 2: round 3 is missing; expected every round from 0 to 3"),
    ("UPDATE round SET round = ? WHERE run_id = 2 AND round = 3", 4, "run_id 2, round 4: round is 4; expected at most the"),
    (f"UPDATE client_round SET client = ? WHERE {AT} AND client = 3", 77, "client is 77; expected a client of its run"),
    (f"UPDATE client_round SET correct = ? WHERE {AT} AND client = 3", 41, CLIENT + "correct is 41; expected at most the"),
    (f"UPDATE client_round SET correct = ? WHERE {AT} AND client = 3", -5, CLIENT + "correct is -5; expected a whole"),
    (f"UPDATE client_round SET loss = ? WHERE {AT} AND client = 3", float("inf"), CLIENT + "loss is inf; expected a finite"),
    (f"UPDATE series SET accuracy = ? WHERE {AT}", 50, "table series, run_id 2, name 'global', round 1: accuracy is 50"),
    (f"UPDATE series SET round = ? WHERE {AT}", 99, "round is 99; expected a round that the table 'round' has"),
    (f"UPDATE series SET name = CAST(? AS TEXT) WHERE {AT}", b"\xff\xfe", "expected a text of at most 1000 characters in UTF-8"),
    (f"UPDATE artifact SET dtype = ? WHERE {AT}", "object", "dtype is 'object'; expected a type of numbers"),
    (f"UPDATE artifact SET dtype = ? WHERE {AT}", "int64, int64", "dtype is 'int64, int64'; expected a type of numbers"),
    (f"UPDATE artifact SET shape = ? WHERE {AT}", "[1000000000000]", "shape is '[1000000000000]'; expected an array of at"),
    (f"UPDATE artifact SET shape = ? WHERE {AT}", "[-4]", "shape is '[-4]'; expected a list of at most 8 lengths"),
    (f"UPDATE artifact SET data = ? WHERE {AT}", b"abc", "data is 3 bytes; expected 32 bytes, packed by zlib"),
    (f"UPDATE artifact SET data = ? WHERE {AT}", arrays.pack_array(np.zeros(10**6)), "expected 32 bytes, packed by zlib"),
    ("UPDATE run SET key = ? WHERE id = 2", "0123456789abcdef", f"id 2: key is '0123456789abcdef'; expected '{KEY}'"),
    ("UPDATE run SET protocol = ? WHERE id = 2", "0123456789abcdef", f"expected '{PROTOCOL}', as its specification"),
    ("UPDATE run SET method = ? WHERE id = 2", "fedala", "table run, id 2: method is 'fedala'; expected 'fedavg', as its"),
    ("UPDATE run SET clients = ? WHERE id = 2", 10**9, "clients is 1000000000; expected 4, as its specification has it"),
    ("UPDATE run SET status = ? WHERE id = 2", "splendid", "status is 'splendid'; expected one of queued, running, finished"),
    ("UPDATE run SET spec = ? WHERE id = 2", '{"data":', "table run, id 2: spec is '{\"data\":'; expected JSON."),
    ("UPDATE run SET spec = ? WHERE id = 2", "{}", "spec.data is missing; expected a whole specification"),
    ("UPDATE run SET spec = ? WHERE id = 2", SPEC.replace('"lr":0.1', '"lr":-1'), "spec.train.lr is -1; expected above 0"),
    ("UPDATE run SET spec = ? WHERE id = 2", SPEC.replace('"lr":0.1', '"lr":1e999'), "expected JSON."),
    ("UPDATE run SET environment = ? WHERE id = 2", DEEP, "environment is '{\"a\":[[[["),
    ("UPDATE run SET environment = ? WHERE id = 2", "[1]", "environment is '[1]'; expected JSON: an object"),
    ("UPDATE run SET environment = ? WHERE id = 2", '{"plugin": 5}', "environment.plugin is '5'; expected an object"),
    ("UPDATE run SET message = ? WHERE id = 2", "x" * 1001, "expected a text of at most 1000 characters in UTF-8"),
    ("UPDATE run SET partition_id = ? WHERE id = 2", 9, "partition_id is 9; expected a partition of as many clients"),
    ("UPDATE partition SET train_counts = ?", "[[3,3],[3,3],[3,-3],[3,3]]", "id 1: train_counts is '[[3,3],[3,3],[3"),
    ("UPDATE partition SET hash = ?", "f" * 63, "expected 64 hexadecimal digits"),
    ("UPDATE partition SET indices = ?", "text", "indices is 'text'; expected binary data of at most 512 MiB"),
    ("UPDATE reference_round SET accuracy = ?", 50.0, "table reference_round, reference_id 1, round 0: accuracy is 50.0"),
    ("UPDATE reference_run SET times = ?", "one", "table reference_run, id 1: times is 'one'; expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "value", "told"), PLANTED, ids=[told[-48:] for *_, told in PLANTED])
def test_a_row_that_is_wrong_is_named(mine: Engine, other: Path, shell: Shell, statement: str, value: Any, told: str) -> None:
    change(other, statement, value)
    said = shell.refused("import", "other.db")
    assert "Error: other.db, table " in said
    assert told in said
    assert "Nothing of it was taken." in said
    assert runs_here(mine) == 0


def test_a_run_that_is_wrong_can_be_left_out(mine: Engine, other: Path, shell: Shell) -> None:
    change(other, "UPDATE round SET accuracy = 5 WHERE run_id = 2")
    assert "pflbench runs rm 2 --db COPY" in shell.refused("import", "other.db")
    assert shell("runs", "rm", "2", "--db", "other.db", "--yes").code == 0
    assert shell("import", "other.db").out == "other.db: 1 run new, 1 reference series\n"


VALUES = "SELECT 2 AS run_id, 'global' AS name, 1 AS round, 0.9 AS accuracy, 0.5 AS test_loss"
COMPUTED = """CREATE TABLE series (run_id INTEGER, name TEXT, round INTEGER, accuracy REAL AS (length(name)), test_loss REAL,
    PRIMARY KEY (run_id, name, round))"""


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (f"CREATE VIEW series AS {VALUES}", "'series' is a view, no table"),
        ("CREATE VIRTUAL TABLE series USING fts5(run_id, name, round, accuracy, test_loss)", "'series' is a virtual table"),
        (COMPUTED, "the column 'accuracy' is computed, not stored"),
        (f"CREATE TABLE series AS {VALUES}", "the primary key is (), not (run_id, name, round)"),
        ("CREATE TABLE series (run_id, name, round, accuracy)", "no column 'test_loss'"),
        ("SELECT 1", "table series: no such table"),
    ],
)
def test_only_tables_are_read(mine: Engine, other: Path, shell: Shell, made: str, told: str) -> None:
    change(other, "DROP TABLE series")
    change(other, made)
    assert told in shell.refused("import", "other.db")
    assert runs_here(mine) == 0


def test_views_and_triggers_beside_the_tables_do_not_matter(mine: Engine, other: Path, shell: Shell) -> None:
    change(other, "CREATE VIEW endless AS WITH RECURSIVE f(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM f) SELECT n FROM f")
    change(other, "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM round; END")
    assert shell("import", "other.db").out == "other.db: 2 runs new, 1 reference series\n"


def test_nothing_acts_while_an_older_schema_is_upgraded(mine: Engine, other: Path, shell: Shell) -> None:
    engine = db.connect(db.to_url(str(other)))
    with db.migrating(engine) as connection:
        command.downgrade(db.alembic_config(connection), "0005")
    engine.dispose()
    change(other, "CREATE TRIGGER t AFTER UPDATE ON pflbench_version BEGIN DELETE FROM run WHERE id = 1; END")
    assert shell("import", "other.db").out == "other.db: 2 runs new, 1 reference series\n"


def test_another_import_of_the_same_runs_is_waited_for(mine: Engine, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in between: after one has looked what is here, before it writes."""
    decide = merge._decide

    def slowly(*arguments: Any) -> merge.Outcome:
        outcome = decide(*arguments)
        monkeypatch.setattr(merge, "_decide", decide)
        with merge.opened(other, mine) as theirs:
            assert [one.what for one in merge.runs(mine, theirs)] == ["new", "new"]
        return outcome

    monkeypatch.setattr(merge, "_decide", slowly)
    with merge.opened(other, mine) as theirs:
        assert [(one.what, one.here) for one in merge.runs(mine, theirs)] == [("same", None), ("same", None)]
    assert runs_here(mine) == 2


@pytest.mark.slow
def test_three_imports_at_once(mine: Engine, other: Path, tmp_path: Path) -> None:
    engine = db.connect(db.to_url(str(other)))
    for seed in range(2, 30):
        add_run(engine, make_spec(seed=seed))
    engine.dispose()
    done = [finish(process) for process in [start("import", "other.db", folder=tmp_path) for _ in range(3)]]
    assert [one.code for one in done] == [0, 0, 0]
    assert runs_here(mine) == 30


def test_limits(monkeypatch: pytest.MonkeyPatch, mine: Engine, other: Path, shell: Shell) -> None:
    monkeypatch.setattr(foreign, "LONGEST_JSON", 100)
    assert "expected JSON of at most 0 MiB" in shell.refused("import", "other.db")
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "planted", "told"),
    [
        ("MNIST_FedAvg_test_0", {"rs_test_auc": [0.5, 7.0]}, "rs_test_auc holds values that are not between 0 and 1"),
        ("MNIST_FedAvg_test_0", {"rs_test_acc": [0.5, float("inf")]}, "no series of accuracies between 0 and 1"),
        (f"MNIST_{'x' * 65}_test_0", {}, "the algorithm in its name is too long"),
        (f"MNIST_FedAvg_test_{'9' * 30}", {}, "the number in its name is too long"),
        ("MNIST_FedAvg_\udcff_0", {}, "its name is no UTF-8"),
    ],
)
def test_result_files(mine: Engine, shell: Shell, name: str, planted: dict[str, list[float]], told: str) -> None:
    held = {"rs_test_acc": [0.5, 0.75], "rs_test_auc": [], "rs_train_loss": [2.0, 1.0], **planted}
    with h5py.File("plain.h5", "w") as file:
        for series, values in held.items():
            file.create_dataset(series, data=values)
    Path("plain.h5").rename(f"{name}.h5")
    assert told in shell.refused("import", f"{name}.h5")


def test_an_infinite_loss_of_a_result_file_is_not_known(mine: Engine, shell: Shell) -> None:
    with h5py.File("MNIST_FedAvg_test_0.h5", "w") as file:
        for series, values in (("rs_test_acc", [0.5, 0.75]), ("rs_train_loss", [float("inf"), 1.0])):
            file.create_dataset(series, data=values)
    assert shell("import", "MNIST_FedAvg_test_0.h5").code == 0
    with mine.connect() as connection:
        assert connection.exec_driver_sql("SELECT train_loss FROM reference_round").scalars().all() == [None, 1.0]
    assert "1000000" in shell.refused("import", "MNIST_FedAvg_test_0.h5", "--eval-gap", str(10**19))
