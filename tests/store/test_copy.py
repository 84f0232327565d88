"""A database that is copied to PostgreSQL and back is the same in every row, and what it says there is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Shell, rows
from support.postgres import PASSWORD, Server
from support.raw_sql import sql
from support.store_samples import make_partition, make_record, make_spec, write_round

from pflbench.spec import DataSpec, RunSpec
from pflbench.store import database as db
from pflbench.store import inspection, partitions, sweeps, write
from pflbench.store.schema import Base

TABLES = [table.name for table in Base.metadata.sorted_tables]


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row as SQLite has it, blobs included; JSON without regard to the blanks in it."""
    found = {table: rows(f'SELECT * FROM "{table}" ORDER BY 1, 2, 3', path) for table in TABLES}
    return {table: [tuple(map(plain, row)) for row in of] for table, of in found.items()}


def plain(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


@pytest.fixture
def empty(server: Server) -> Iterator[str]:
    url = server.new(filled=False)
    yield url
    server.drop(url)


HELD = {f"{side}_{i}": np.arange(count) for side in ("train", "test") for i, count in enumerate((3, 3, 0, 0))}


def fill(path: Path) -> None:
    """A row in every table, with what databases are apt to see differently."""
    engine = db.connect(db.to_url(str(path)))
    run = write.create_run(engine, make_spec(seed=2**40), {"notes": {"ü": 'a "word" \\ \u2028', "1": [1.5e-300, None, True]}})
    removed = write.create_run(engine, make_spec(seed=1), {})
    last = write.create_run(engine, make_spec(seed=3), {})
    write.remove_run(engine, write.create_run(engine, make_spec(seed=4), {}))
    write.remove_run(engine, removed)
    write.update_run(engine, last, status="diverged", message="x" * 1000)
    held = np.array([[3, 0], [1, 2], [0, 0], [0, 0]])
    write.update_run(
        engine, run, partition_id=partitions.save(engine, make_partition(train=held, test=held, indices=HELD)), device="d" * 300
    )
    loss = np.array([0.1, 1.7e308, 1e-308, 1 / 3])
    arrays = {"a": np.arange(256, dtype=np.uint8), "b": np.array([np.nan, -0.0])}
    write_round(engine, run, make_record(0, loss=loss, peak_memory=2**40, artifacts=arrays, series={"global": (0.1, 2.5)}))
    new = {"client": 3, "epochs": 2, "correct": 1, "total": 3, "loss": 1 / 3}
    write_round(engine, run, write.RoundRecord(round=1, new_clients=[new]))
    sweeps.save(engine, "small", [make_spec()], {"command": "pflbench sweep"})
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO reference_run VALUES (3, 'h', 'f', 'mnist', 'fedala', 'FedALA', 'test', 0, '2026-01-01T00:00:00Z')",
            "INSERT INTO reference_round VALUES (3, 0, 0.125, NULL, NULL)",
        ):
            connection.exec_driver_sql(statement)
    engine.dispose()


def test_there_and_back(shell: Shell, empty: str, tmp_path: Path) -> None:
    fill(tmp_path / "first.db")
    before = content(tmp_path / "first.db")
    assert all(before.values())
    told = json.loads(shell("db", "copy", "first.db", empty, "--json").out)
    assert told == {table: len(of) for table, of in before.items()}
    assert inspection.check(empty) == []
    done = shell("db", "copy", empty, "second.db")
    assert done.code == 0, done.err
    assert PASSWORD not in done.out + done.err
    assert content(tmp_path / "second.db") == before

    refusal = shell.refused("db", "copy", "first.db", empty)
    assert "is not empty" in refusal
    assert PASSWORD not in refusal
    assert "No results yet" in shell.refused("db", "copy", "nowhere.db", "third.db")
    assert not (tmp_path / "third.db").exists()

    for url in (empty, db.to_url("second.db")):  # the next number comes after those that were copied
        engine = db.connect(url)
        assert write.create_run(engine, make_spec(seed=9), {}) == 4
        assert partitions.save(engine, make_partition(hash="e" * 64)) == 2
        engine.dispose()


def own_data(path: Path) -> RunSpec:
    return make_spec().model_copy(update={"data": DataSpec(name="npz", path=str(path), content="c" * 64)})


@pytest.mark.parametrize("way", [("db", "copy", "there/r.db", "here/r.db"), ("import", "there/r.db", "--db", "here/r.db")])
def test_own_data_lie_where_they_lay(shell: Shell, tmp_path: Path, way: tuple[str, ...]) -> None:
    """Paths are kept from the database's folder, which is another one now. A run has none that tells of the machine."""
    for name in ("here", "there/data"):
        (tmp_path / name).mkdir(parents=True)
    beside, within = own_data(tmp_path / "there" / "x.npz"), own_data(tmp_path / "here" / "x.npz")
    engine = db.connect(db.to_url("there/r.db"))
    for seed, spec in enumerate((beside, within, within)):
        write.create_run(engine, spec.model_copy(update={"seed": seed}), {}, whole=seed == 2)
    sweeps.save(engine, "own", [beside, within], {"data_dir": str(tmp_path / "there" / "data"), "plugins": ["/p.py"]})
    engine.dispose()
    assert shell(*way).code == 0
    engine = db.connect(db.to_url("here/r.db"))
    stored = [json.loads(shell("runs", "show", str(run), "--json", "--db", "here/r.db").out)["spec"] for run in (1, 2, 3)]
    assert [spec["data"]["path"] for spec in stored] == ["x.npz", "x.npz", str(tmp_path / "here" / "x.npz")]
    if way[0] == "db":
        sweep = sweeps.find(engine, "own")
        assert sweep.specs == (beside, within)
        assert sweep.environment == {"data_dir": str(tmp_path / "there" / "data"), "plugins": ["/p.py"]}
        assert shell("db", "copy", "here/r.db", "there/again.db").code == 0
        again = db.connect(db.to_url("there/again.db"))
        assert sweeps.find(again, "own") == sweep
        again.dispose()
    engine.dispose()


def test_what_cannot_be_copied_leaves_the_target_empty(shell: Shell, empty: str, tmp_path: Path) -> None:
    fill(tmp_path / "first.db")
    sql(tmp_path / "first.db", "UPDATE round SET participants = 5000000000")
    assert "A row of round cannot be copied" in shell.refused("db", "copy", "first.db", empty)
    assert inspection.info(empty)["runs"] == {}
