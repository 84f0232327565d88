"""Exports hold what the database holds, read with other libraries; imports merge databases by the keys of their runs."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import Engine
from support.command import Shell, start
from support.raw_sql import sql
from support.store_samples import add_run, make_record, make_spec, write_round

from pflbench.cli import main
from pflbench.store import database as db
from pflbench.store import inspection, runs
from pflbench.store.exchange import export

Row = tuple[Any, ...]
RESULTS = ("round", "client_round", "new_client", "series", "artifact")


def connect(path: Path | str) -> Engine:
    return db.connect(db.to_url(str(path)))


@pytest.fixture(scope="module")
def stored(new_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of two runs, to be copied: 1, FedAvg with seed 0, and 2, Ditto."""
    path = shutil.copy(new_database, tmp_path_factory.mktemp("stored"))
    engine = connect(path)
    add_run(engine, make_spec())
    add_run(engine, make_spec(method="ditto"))
    engine.dispose()
    return path


@pytest.fixture
def mine(stored: Path, tmp_path: Path) -> Iterator[Engine]:
    """pflbench.db, with the two runs."""
    engine = connect(shutil.copy(stored, tmp_path / "pflbench.db"))
    yield engine
    engine.dispose()


@pytest.fixture
def other(new_database: Path, tmp_path: Path) -> Iterator[Engine]:
    engine = connect(shutil.copy(new_database, tmp_path / "other.db"))
    yield engine
    engine.dispose()


def change(path: Path | str, *statements: str) -> None:
    for statement in statements:
        sql(path, statement)


def content(path: Path | str) -> dict[str, list[Row]]:
    return {table: sql(path, f"SELECT * FROM {table}") for table in ("run", "partition", *RESULTS)}


# --- export ---


def test_rounds_as_csv_are_the_rows_of_the_database(mine: Engine, shell: Shell) -> None:
    lines = list(csv.reader(io.StringIO(shell("export", "rounds").out)))
    promised = "run,method,dataset,partition,seed,round,accuracy,train_loss,seconds_receive,seconds_update,seconds_evaluate"
    assert ",".join(lines[0]).startswith(f"{promised},params_up,params_down,")
    columns = [row[1] for row in sql("pflbench.db", "PRAGMA table_info(round)")]
    assert set(lines[0]) == {"run", "method", "dataset", "partition", "seed", *columns} - {"run_id"}
    of_round = [name for name in lines[0] if name in columns]
    names = f"run_id, method, dataset, partition_label, seed, {', '.join(of_round)}"
    expected = sql("pflbench.db", f"SELECT {names} FROM round JOIN run ON run.id = run_id ORDER BY run_id, round")
    assert len(expected) == 8
    assert [tuple(line) for line in lines[1:]] == [tuple("" if v is None else str(v) for v in row) for row in expected]


def test_clients_as_parquet(mine: Engine, shell: Shell, tmp_path: Path) -> None:
    done = shell("export", "clients", "-o", "clients.parquet", "-m", "Ditto")
    assert (done.code, done.out) == (0, "")
    assert "16 rows" in done.err  # 4 rounds of 4 clients
    table = pd.read_parquet(tmp_path / "clients.parquet")
    assert ",".join(table.columns) == "run,method,dataset,partition,seed,round,client,correct,total,accuracy,loss"
    assert (set(table["run"]), set(table["method"])) == ({2}, {"ditto"})
    # store_samples.make_record: client 3 has 40 samples, 3 + t of them correct, and a loss of 1.5 + t.
    last = table.iloc[-1]
    assert (last["client"], last["correct"], last["total"], last["accuracy"], last["loss"]) == (3, 6, 40, 0.15, 4.5)


def test_a_format_that_contradicts_the_name_is_refused(mine: Engine, shell: Shell, tmp_path: Path) -> None:
    done = shell("export", "rounds", "--format", "parquet", "-o", "x.csv")
    assert (done.code, "--format parquet contradicts the name x.csv." in done.err) == (2, True)
    assert not (tmp_path / "x.csv").exists()
    assert shell("export", "rounds", "--format", "csv", "-o", "x.txt").code == 0


def test_runs_as_strict_json_and_as_csv(mine: Engine, shell: Shell) -> None:
    write_round(mine, 1, make_record(4, accuracy=0.18))  # as after round 3: of equally good rounds the earliest is the best

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    fedavg, ditto = json.loads(shell("export", "runs", "-f", "json").out, parse_constant=no_constant)
    ((key, protocol),) = sql("pflbench.db", "SELECT key, protocol FROM run WHERE id = 1")
    assert (fedavg["run"], fedavg["key"], fedavg["protocol"], fedavg["status"]) == (1, key, protocol, "finished")
    assert (fedavg["best_accuracy"], fedavg["best_round"], fedavg["last_round"]) == (0.18, 3, 4)
    assert (fedavg["commit"], fedavg["partition_hash"], fedavg["spec"]["train"]["lr"]) == ("abc", "f" * 64, 0.1)
    assert ditto["protocol"] == protocol
    (line,) = csv.DictReader(io.StringIO(shell("export", "runs", "--run", key[:6]).out))
    assert (line["run"], json.loads(line["hyperparameters"]), json.loads(line["spec"])["seed"]) == ("1", {}, 0)


def test_what_csv_and_json_cannot_say(mine: Engine, shell: Shell) -> None:
    """What looks like a formula is quoted in CSV alone, and JSON has no infinity."""
    change("pflbench.db", "UPDATE run SET message = '=cmd()'")
    change("pflbench.db", "UPDATE round SET test_loss = -0.5", "UPDATE round SET test_loss = 9e999 WHERE round = 0")

    def values(kind: str, column: str) -> list[set[Any]]:
        table, document = (shell("export", kind, "-f", form).out for form in ("csv", "json"))
        assert "Infinity" not in document
        return [{row[column] for row in of} for of in (csv.DictReader(io.StringIO(table)), json.loads(document))]

    assert values("runs", "message") == [{"'=cmd()"}, {"=cmd()"}]
    assert values("rounds", "test_loss") == [{"inf", "-0.5"}, {None, -0.5}]


def test_filters(mine: Engine, shell: Shell) -> None:
    add_run(mine, make_spec(seed=1), 0, status="interrupted")
    for arguments, expected in {
        (): ["1", "2", "3"],
        ("--status", "interrupted"): ["3"],
        ("-m", "FedAvg", "-d", "digits", "-p", "Dir(0.1)"): ["1", "3"],
        ("-m", "fedavg", "--run", "2", "--run", "3"): ["3"],
    }.items():
        assert [row["run"] for row in csv.DictReader(io.StringIO(shell("export", "runs", *arguments).out))] == expected
    none = ("export", "rounds", "--run", "2", "--status", "failed")
    done = shell(*none)
    assert (done.code, len(done.out.splitlines()), "no such rounds" in done.err) == (0, 1, True)
    assert shell(*none, "-o", "empty.csv").err == "No rows in empty.csv: there are no such rounds.\n"
    assert Path("empty.csv").read_text() == done.out
    assert json.loads(shell(*none, "-f", "json").out) == []


def test_memory_does_not_grow_with_the_table(mine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ((1, 10 + t, client, 1, 2, 0.5, None, None, None) for t in range(500) for client in range(20))
    with sqlite3.connect(str(mine.url.database)) as connection:
        connection.executemany("INSERT INTO client_round VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.close()

    class Sink(io.RawIOBase):
        def write(self, data: Any) -> int:
            return len(data)

    def peak(chunk: int) -> int:
        monkeypatch.setattr(export, "CHUNK", chunk)
        tracemalloc.start()
        assert export.write(export.rows(mine, "clients"), "csv", Sink()) == 10_032
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    monkeypatch.setattr(export, "CHUNK", 4_000)
    sizes = [len(part) for part in export.rows(mine, "clients").chunks]
    assert sizes == [4_000, 4_000, 2_032]
    assert peak(200) < peak(50_000) / 10


def test_a_reader_that_has_seen_enough_is_no_error(mine: Engine, tmp_path: Path) -> None:
    change(tmp_path / "pflbench.db", "UPDATE run SET message = hex(zeroblob(99999))")  # more than a pipe holds
    with start("export", "runs", folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(3)
        process.stdout.close()
        assert (process.wait(timeout=120), process.stderr.read()) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tables",), "Unknown kind 'tables'"),
        (("runs", "-f", "xml"), "Valid: csv, json, parquet"),
        (("runs", "-o", "runs.txt"), "does not say a format"),
        (("runs", "-o", "no/runs.csv"), "Cannot write no/runs.csv"),
        (("runs", "--run", "77"), "No run '77'"),
        (("runs", "-m", "fedala"), "There are: ditto, fedavg"),
        (("runs", "--status", "done"), "Unknown status 'done'"),
        (("runs", "--db", "none.db"), "No results yet"),
    ],
)
def test_export_says_what_is_wrong(mine: Engine, shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    assert told in shell.refused("export", *arguments)


def test_parquet_is_not_for_a_terminal(mine: Engine, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "-o runs.parquet" in shell.refused("export", "runs", "-f", "parquet")


# --- import ---


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two databases of real runs: a.db with seed 0, b.db with seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("real")
    for name, seeds in (("a", "0-0"), ("b", "0-1")):
        what = ["-m", "fedavg", "-d", "digits", "-r", "1", "--seeds", seeds, "--new-clients", "2"]
        assert main(["run", *what, "-q", "--db", str(folder / f"{name}.db")]) == 0
    return folder


def test_two_databases_of_real_runs_become_one(real: Path, shell: Shell, tmp_path: Path) -> None:
    for name in ("a.db", "b.db"):
        shutil.copy(real / name, tmp_path)
    source = hashlib.sha256(Path("b.db").read_bytes()).hexdigest()
    done = shell("import", "b.db", "--db", "a.db")
    assert (done.code, done.out) == (0, "b.db: 1 run new, 1 run here already\n")  # seed 0, though its times are others
    assert [row[0] for row in sql("a.db", "SELECT seed FROM run ORDER BY id")] == [0, 1]
    for table in RESULTS:
        columns = ", ".join(row[1] for row in sql("b.db", f"PRAGMA table_info({table})") if row[1] not in ("id", "run_id"))
        query = f"SELECT {columns} FROM {table} WHERE run_id = 2 ORDER BY 1, 2, 3"
        assert sql("a.db", query) == sql("b.db", query)
    ((name,),) = sql("a.db", "SELECT json_extract(environment, '$.imported_from') FROM run WHERE id = 2")
    assert name == "b.db, run 2"
    assert sql("a.db", "SELECT count(*) FROM partition") == [(1,)]
    assert inspection.check(db.to_url("a.db")) == []

    before = content("a.db")
    (again,) = json.loads(shell("import", "b.db", "--db", "a.db", "--json").out)
    assert (again["new"], again["same"], [run["compared"] for run in again["runs"]]) == (0, 2, [1, 2])
    assert content("a.db") == before
    assert hashlib.sha256(Path("b.db").read_bytes()).hexdigest() == source

    change("b.db", "UPDATE new_client SET correct = 0 WHERE client = 9 AND epochs = 4")
    ((here,),) = sql("a.db", "SELECT correct FROM new_client WHERE client = 9 AND epochs = 4 AND run_id = 1")
    told = shell("import", "b.db", "--db", "a.db").err
    assert f"differ first in round 1, in correct of client 9 after 4 epochs: 0 there, {here} here" in told


def test_a_conflict_is_named_and_does_not_stop_the_others(mine: Engine, other: Engine, shell: Shell) -> None:
    add_run(other, make_spec(), 3, accuracy=0.5)
    change("other.db", "DELETE FROM client_round WHERE round = 3")
    add_run(other, make_spec(seed=1))
    before = content("pflbench.db")
    done = shell("import", "other.db", "--dry-run", "--on-conflict", "attempt")
    assert done.out == "other.db (dry run): 1 run new, 1 run as the next attempt of a key\n"
    assert content("pflbench.db") == before
    assert shell("import", "other.db", "--dry-run", "--db", "new.db").out == "other.db (dry run): 2 runs new\n"
    assert not Path("new.db").exists()

    done = shell("import", "other.db")
    assert (done.code, done.out) == (2, "other.db: 1 run new, 1 run in conflict\n")
    assert "and run 1 here differ first" in done.err
    assert "differ first in round 3, in accuracy: 0.5 there, 0.18 here" in done.err
    assert sql("pflbench.db", "SELECT id, seed FROM run WHERE method = 'fedavg'") == [(1, 0), (3, 1)]
    assert shell("import", "other.db").out == "other.db: 1 run here already, 1 run in conflict\n"

    assert shell("import", "other.db", "--on-conflict", "attempt").code == 0
    assert sql("pflbench.db", "SELECT id, attempt FROM run WHERE seed = 0 AND method = 'fedavg'") == [(1, 1), (4, 2)]
    assert sql("pflbench.db", "SELECT accuracy FROM round WHERE run_id = 4 AND round = 3") == [(0.5,)]
    assert shell("import", "other.db").out == "other.db: 2 runs here already\n"


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            "UPDATE client_round SET correct = 0 WHERE round = 1 AND client = 2",
            "round 1, in correct of client 2: 0 there, 3 here",
        ),
        ("DELETE FROM client_round WHERE round = 2 AND client = 3", "round 2, in correct of client 3: none there, 5 here"),
        ("UPDATE series SET accuracy = 0.25 WHERE round = 0", "round 0, in accuracy of global: 0.25 there, 0.5 here"),
        (
            "UPDATE run SET status = 'diverged'; DELETE FROM artifact WHERE round = 3; DELETE FROM series WHERE round = 3; "
            "DELETE FROM client_round WHERE round = 3; DELETE FROM round WHERE round = 3",
            "round 3, in accuracy: none there, 0.18 here",
        ),
        ("UPDATE round SET params_up = 7 WHERE round = 1", "round 1, in params up: 7 there, none here"),
    ],
)
def test_the_first_difference_is_found_wherever_it_is(
    mine: Engine, other: Engine, shell: Shell, statement: str, told: str
) -> None:
    add_run(other, make_spec())
    for name in ("pflbench.db", "other.db"):  # that clients have other results does not show in their rounds
        change(name, "UPDATE round SET accuracy = NULL WHERE round IN (1, 2)")
    later = "UPDATE round SET test_loss = 9 WHERE round = 3; DELETE FROM client_round WHERE round = 3"
    change("other.db", *later.split("; "), *statement.split("; "))
    assert told in shell("import", "other.db").err


def test_times_memory_and_arrays_are_no_conflict(mine: Engine, other: Engine, shell: Shell) -> None:
    add_run(other, make_spec())
    change("other.db", "UPDATE round SET seconds_update = 9, peak_memory = 9", "DELETE FROM artifact")
    assert shell("import", "other.db").out == "other.db: 1 run here already\n"


def test_a_finished_run_is_added_to_an_unfinished_one(mine: Engine, other: Engine, shell: Shell) -> None:
    for seed, status in enumerate(("interrupted", "running", "failed"), start=1):
        add_run(mine, make_spec(seed=seed), 1, status=status)
        add_run(other, make_spec(seed=seed))
    assert shell("import", "other.db").out == "other.db: 3 runs as the next attempt of a key\n"
    for seed in (1, 2, 3):
        newest = runs.newest(mine, make_spec(seed=seed).key)
        assert newest is not None
        assert (newest.attempt, newest.status, newest.last_round) == (2, "finished", 3)
    assert shell("import", "other.db").out == "other.db: 3 runs here already\n"


def test_unfinished_runs(mine: Engine, other: Engine, shell: Shell) -> None:
    """None replaces one that is here; one that is running arrives as interrupted."""
    add_run(mine, make_spec(seed=1), 1, status="interrupted")
    before = content("pflbench.db")
    for seed in (0, 1):
        add_run(other, make_spec(seed=seed), 2, status="running")
    done = shell("import", "other.db")
    assert (done.code, done.out) == (0, "other.db: 1 run here already, 1 run left out, unfinished here as well\n")
    assert "run 2 of other.db" in done.err
    assert "unfinished after round 2: run 3 here is, too" in done.err
    assert content("pflbench.db") == before
    add_run(other, make_spec(seed=2), 2, status="running")
    assert "Checkpoints are not imported" in shell("import", "other.db").err
    assert sql("pflbench.db", "SELECT status, attempt FROM run WHERE seed = 2") == [("interrupted", 1)]
    assert sql("other.db", "SELECT DISTINCT status FROM run") == [("running",)]


def test_an_older_schema_is_upgraded_in_a_copy(
    mine: Engine, other: Engine, shell: Shell, add_migration: Callable[..., Path]
) -> None:
    add_run(other, make_spec(seed=1))
    other.dispose()
    mine.dispose()
    source, old = Path("other.db").read_bytes(), db.head()
    add_migration()
    assert shell("import", "other.db").out == "other.db: 1 run new\n"
    assert Path("other.db").read_bytes() == source
    assert sql("other.db", "SELECT * FROM pflbench_version") == [(old,)]
    assert sql("pflbench.db", "SELECT * FROM pflbench_version") == [("9999",)]
    assert sql("pflbench.db", "SELECT correct FROM client_round WHERE run_id = 3 AND round = 2") == [(2,), (3,), (4,), (5,)]


def test_a_bad_file_is_named_and_the_others_are_taken(mine: Engine, other: Engine, shell: Shell) -> None:
    add_run(other, make_spec(seed=1))
    Path("text.db").write_text("no database\n" * 100)
    sqlite3.connect("empty.db").execute("VACUUM").connection.close()
    change("foreign.db", "CREATE TABLE song (name)")
    change("empty.db", "CREATE TABLE t (x)", "DROP TABLE t")
    done = shell("import", "text.db", "none.db", "foreign.db", "empty.db", ".", "pflbench.db", "other.db")
    assert (done.code, done.out) == (2, "other.db: 1 run new\n")
    for told in (
        "text.db is neither a pflbench database nor an HDF5 file",
        "no file none.db",
        "foreign.db is another program's database",
        "empty.db is empty",
        "There is no file .",
        "pflbench.db is the database to import into",
    ):
        assert told in done.err


def test_a_damaged_source_is_called_so(mine: Engine, other: Engine, shell: Shell, damage: Callable[[Path], None]) -> None:
    add_run(other, make_spec(seed=1))
    other.dispose()
    damage(Path("other.db"))
    assert "other.db is damaged" in shell.refused("import", "other.db")
    assert sql("pflbench.db", "SELECT count(*) FROM run") == [(2,)], "nothing of the run that could not be read"


def test_conflict_rules_are_checked(shell: Shell) -> None:
    assert "Valid: attempt, skip" in shell.refused("import", "other.db", "--on-conflict", "overwrite")
