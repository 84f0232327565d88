"""Exports as partitioned Parquet hold what the database holds, read back by pyarrow."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet
from support.command import Shell
from support.store_samples import make_record, make_spec, write_round

from pflbench.errors import UserError
from pflbench.store import write
from pflbench.store.database import connect, to_url
from pflbench.store.exchange import partitioned
from pflbench.store.exchange.export import Rows
from pflbench.store.exchange.partitioned import write_folder


@pytest.fixture
def shell_with_runs(shell: Shell, new_database: Path, tmp_path: Path) -> Shell:
    """pflbench.db with FedAvg and Ditto, two seeds of each."""
    (tmp_path / "pflbench.db").write_bytes(new_database.read_bytes())
    engine = connect(to_url(str(tmp_path / "pflbench.db")))
    for seed in (0, 1):
        for method in ("fedavg", "ditto"):
            run = write.create_run(engine, make_spec(seed=seed, method=method), {})
            for t in range(4):
                write_round(engine, run, make_record(t))
    engine.dispose()
    return shell


def ask(query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect("pflbench.db")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def read(folder: str, *names: str) -> list[tuple[Any, ...]]:
    table = dataset.dataset(folder, partitioning="hive").to_table(columns=list(names))
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_each_kind_is_what_the_database_has(shell_with_runs: Shell) -> None:
    shell = shell_with_runs
    assert shell("export", "clients", "--partition-by", "method,partition", "-o", "clients").err == "Wrote clients: 64 rows.\n"
    run = "JOIN run ON run.id = run_id ORDER BY"
    assert read("clients", "run", "method", "partition", "round", "client", "correct", "loss") == ask(
        f"SELECT run_id, method, partition_label, round, client, correct, loss FROM client_round {run} 1, 2, 3, 4, 5"
    )
    assert shell("export", "rounds", "--partition-by", "method, seed", "-o", "rounds").code == 0
    query = f"SELECT run_id, method, seed, round, accuracy FROM round {run} 1, 2, 3, 4"
    assert read("rounds", "run", "method", "seed", "round", "accuracy") == ask(query)
    assert shell("export", "runs", "-m", "ditto", "--partition-by", "dataset", "-o", "runs").code == 0
    assert read("runs", "run", "dataset", "method", "key") == ask(
        "SELECT id, dataset, method, key FROM run WHERE method = 'ditto'"
    )


def test_a_query_finds_its_file_by_the_name_alone(shell_with_runs: Shell) -> None:
    shell_with_runs("export", "rounds", "--partition-by", "method,seed", "-o", "rounds")
    files = sorted(str(path) for path in Path("rounds").rglob("*.parquet"))
    assert files == [f"rounds/method={m}/seed={s}/part-0.parquet" for m in ("ditto", "fedavg") for s in (0, 1)]
    # ParquetFile: read_table would add what the folders' names say.
    in_the_file = parquet.ParquetFile(files[1]).read()
    assert set(in_the_file["run"].to_pylist()) == {4}
    assert {"method", "seed"}.isdisjoint(in_the_file.column_names)


def test_an_older_export_is_replaced_as_a_whole(shell_with_runs: Shell) -> None:
    shell = shell_with_runs
    shell("export", "rounds", "--partition-by", "method,seed", "-o", "rounds")
    Path("rounds/method=gone").mkdir()
    shell("export", "rounds", "--partition-by", "method", "-o", "rounds")
    assert sorted(path.name for path in Path("rounds").iterdir()) == ["method=ditto", "method=fedavg"]
    assert sorted(path.name for path in Path(".").iterdir()) == ["pflbench.db", "rounds"]
    Path("rounds/notes.txt").write_text("mine")
    told = shell.refused("export", "rounds", "--partition-by", "method", "-o", "rounds")
    assert "rounds has other files, such as notes.txt" in told
    assert "." not in {path.name for path in Path("rounds").iterdir()}


@pytest.mark.parametrize("name", ["precious.parquet", "sub/y.parquet", "method=fedala/mine.parquet", "part-0.parquet"])
def test_parquet_of_others_stays(shell_with_runs: Shell, tmp_path: Path, name: str) -> None:
    file = tmp_path / "rounds" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"precious")
    told = shell_with_runs.refused("export", "rounds", "--partition-by", "method", "-o", "rounds")
    assert f"rounds has other files, such as {file.name}" in told
    assert file.read_bytes() == b"precious"


def test_what_is_refused(shell_with_runs: Shell) -> None:
    shell = shell_with_runs
    assert "Unknown column to partition by 'accuracy'" in shell.refused(
        "export", "rounds", "--partition-by", "accuracy", "-o", "x"
    )
    assert "needs a folder" in shell.refused("export", "rounds", "--partition-by", "seed")
    assert "not for csv" in shell.refused("export", "rounds", "--partition-by", "seed", "-f", "csv", "-o", "x")
    assert "names a column twice" in shell.refused("export", "rounds", "--partition-by", "seed,seed", "-o", "x")
    assert "is a file" in shell.refused("export", "rounds", "--partition-by", "seed", "-o", "pflbench.db")
    assert [path.name for path in Path(".").iterdir()] == ["pflbench.db"]


def many(rows: int, values: int, seen: list[int]) -> Rows:
    """Rows of a made-up table by chunks; `seen` gets what Arrow holds each time that one is asked for."""

    def chunks() -> Iterator[list[Any]]:
        for first in range(0, rows, 5_000):
            seen.append(pa.total_allocated_bytes())
            yield [(t, t % values, t / 7) for t in range(first, first + 5_000)]

    return Rows({"row": int, "group": int, "value": float}, chunks())


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    seen: list[int] = []
    assert write_folder(many(250_000, 3, seen), ["group"], tmp_path / "large") == 250_000
    assert max(seen) - seen[0] < 250_000 * 24 / 4  # of 24 bytes each
    table = dataset.dataset(tmp_path / "large", partitioning="hive").to_table()
    assert table.num_rows == 250_000
    assert sum(table["row"].to_pylist()) == 250_000 * 249_999 // 2


def test_too_many_values_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioned, "MOST", 5)
    with pytest.raises(UserError, match="more than 5 different values of group"):
        write_folder(many(10_000, 6, []), ["group"], tmp_path / "large")
    assert write_folder(many(10_000, 5, []), ["group"], tmp_path / "few") == 10_000
    shutil.rmtree(tmp_path / "few")
    assert list(tmp_path.iterdir()) == []
