"""The papers' values in the database: every row of the files, once, with old rows in place, replaced when the files change."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from support.report_database import add_run, spec
from support.store_samples import ROOT, write_round

from alembic import command
from pflbench import papers
from pflbench.store import database as db
from pflbench.store.rounds import by_series
from pflbench.store.runs import ALL, Result, Select, results
from pflbench.store.schema import ReferenceRow, RunRow
from pflbench.store.write import RoundRecord, create_run

FILES = sorted((ROOT / "pflbench" / "papers").glob("*.csv"))


def lines() -> list[dict[str, str]]:
    return [row for file in FILES for row in csv.DictReader(file.open(encoding="utf-8"))]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return db.to_url(str(tmp_path / "results.db"))


def stored(url: str) -> list[tuple[Any, ...]]:
    query = 'SELECT source, "table", setting, dataset, backbone, method, metric, mean, std, version FROM reference ORDER BY id'
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        return connection.execute(query).fetchall()


def test_a_new_database_holds_every_row_of_the_files(url: str) -> None:
    db.connect(url).dispose()
    rows = stored(url)
    assert len(rows) == len(lines()) == 378
    for row, line in zip(rows, lines(), strict=True):
        assert row[1] == line["table"]
        assert row[3:7] == (line["dataset"], line["backbone"], line["method"], line["metric"])
        assert row[7:9] == tuple(float(line[key]) if line[key] else None for key in ("mean", "std"))
    assert {row[0] for row in rows} == {papers.FEDALA, papers.ELASTIC}
    assert {row[9] for row in rows} == {papers.version()}


def test_an_old_database_gets_them_and_keeps_its_runs(url: str) -> None:
    engine = db.open_engine(url)
    with db.migrating(engine) as connection:
        command.upgrade(db.alembic_config(connection), "0001")
    run = add_run(engine, spec("fedala"), [0.1, 0.5])
    engine.dispose()
    opened = db.connect(url, create=False)
    with opened.connect() as connection:
        assert connection.execute(select(RunRow.id, RunRow.method)).all() == [(run, "fedala")]
        assert connection.scalar(select(func.count()).select_from(ReferenceRow)) == len(lines())
    opened.dispose()


def test_filling_again_changes_nothing(url: str) -> None:
    for _ in range(2):
        db.connect(url).dispose()
        db.upgrade(url)
    rows = stored(url)
    assert len(rows) == len(lines())
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT max(id) FROM reference").fetchone() == (len(lines()),)


@pytest.mark.parametrize("way", ["upgrade", "create"])
def test_other_files_replace_the_rows(url: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db.connect(url).dispose()
    before = stored(url)
    monkeypatch.setattr(papers, "version", lambda: "newer")
    monkeypatch.setattr(papers, "values", lambda: of[:3])
    db.connect(url, create=False).dispose()
    assert stored(url) == before, "a command that only reads does not write"
    db.upgrade(url) if way == "upgrade" else db.connect(url).dispose()
    assert [row[:9] for row in stored(url)] == [row[:9] for row in before[:3]]
    assert {row[9] for row in stored(url)} == {"newer"}


of = papers.values()


@pytest.fixture
def engine(url: str) -> Engine:
    return db.connect(url)


@pytest.mark.parametrize(
    ("rule", "value", "at", "used"),
    [(Select("best"), 0.6, 1, 1), (Select("last"), 0.4, 3, 1), (Select("mean-last", 3), 0.5333333333, 3, 3)],
)
def test_a_run_counts_by_its_series_under_the_same_rule(engine: Engine, rule: Select, value: float, at: int, used: int) -> None:
    run = create_run(engine, spec("elastic"), {})
    for t, central in enumerate((0.1, 0.6, 0.6, 0.4)):
        write_round(engine, run, RoundRecord(round=t, accuracy=0.9, series={"central": (central, 1.0), "other": (0.99, 1.0)}))
    add_run(engine, spec("fedavg"), [0.9])
    (found,) = by_series(engine, results(engine, ALL, rule), "central", rule)
    assert isinstance(found, Result)
    assert (found.id, found.round, found.used) == (run, at, used)
    assert found.value == pytest.approx(value)
