"""What can go wrong with a database, said in one or two lines, and nothing lost. And what `check` and `info` find."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.command import Shell, parsed
from support.privileges import unprivileged
from support.store_samples import finish, make_partition, make_record, make_spec, python, write_round

from pflbench.errors import UserError
from pflbench.store import database as db
from pflbench.store import failures, inspection, locks, partitions, rounds, write

ONES = np.ones((4, 2), dtype=np.int64)  # samples of 4 clients by class
MEANS = [sum(min(i + t, 10 * (i + 1)) / (10 * (i + 1)) for i in range(4)) / 4 for t in range(4)]  # of make_record's clients


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "results.db"


@pytest.fixture
def filled(path: Path, store: Engine) -> Path:
    """A database with one finished run of rounds 0 to 3."""
    run_id = write.create_run(store, make_spec(rounds=3), {})
    held = {f"{side}_{i}": np.arange(2) for side in ("train", "test") for i in range(4)}
    partition_id = partitions.save(store, make_partition(train=ONES, test=ONES, indices=held))
    sent = dict(zip(("params_up", "params_down", "scalars_up", "scalars_down"), (4, 8, 12, 16), strict=True))
    for t in range(4):
        columns = {**sent, "bytes_up": 64, "bytes_down": 96, "accuracy_mean": MEANS[t]}
        arrays = {"weights": np.eye(2), "traffic": np.tile(np.arange(1, 5), (4, 1))}
        write_round(store, run_id, make_record(t, artifacts=arrays, series={"global": (0.5, 1.0)}, **columns))
    write.update_run(store, run_id, status="finished", partition_id=partition_id)
    store.dispose()
    return path


def refused(match: str, use: Callable[..., Any], *arguments: Any, **options: Any) -> UserError:
    with pytest.raises(UserError, match=match) as told:
        use(*arguments, **options)
    assert len(str(told.value).splitlines()) <= 2
    assert told.value.hint
    return told.value


def url_of(path: Path) -> str:
    return db.to_url(str(path))


def test_a_path_becomes_an_absolute_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert sa.make_url(db.to_url("pflbench.db")).database == str(tmp_path / "pflbench.db")
    assert sa.make_url(db.to_url("~/all.db")).database == os.path.expanduser("~/all.db")
    assert db.to_url("postgresql://me:secret@host/name") == "postgresql://me:secret@host/name"


def test_any_file_name_will_do(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "50% #1 ä.db"
    path.parent.mkdir()
    db.connect(url_of(path)).dispose()
    assert path.exists()
    db.connect(url_of(path), create=False).dispose()


def test_alembic_is_imported_for_upgrades_only(filled: Path) -> None:
    code = "import sys; from pflbench.store import database; database.connect(sys.argv[1]); print('alembic' in sys.modules)"
    assert finish(python(code, url_of(filled))) == "False\n"


def test_missing_database_is_not_made_by_reading(path: Path) -> None:
    for use in (lambda url: db.connect(url, create=False), inspection.info, inspection.check):
        assert "pflbench run" in refused("No results yet", use, url_of(path)).hint
    assert not path.exists()
    path.touch()
    refused("No results yet", db.connect, url_of(path), create=False)
    db.connect(url_of(path)).dispose()
    assert inspection.check(url_of(path)) == []


@pytest.mark.parametrize("content", [b"x", b"accuracy,round\n" * 1000, b"SQLite format 3\0 and no more"], ids=len)
def test_file_that_is_no_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (db.connect, db.upgrade, inspection.info, inspection.check):
        refused(r"not a SQLite database|damaged", use, url_of(path))
    assert path.read_bytes() == content


def test_database_of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.execute("CREATE TABLE run (name)")
        connection.execute(f"INSERT INTO alembic_version VALUES ('{db.head()}')")
    content = path.read_bytes()
    for use in (db.connect, db.upgrade, inspection.info, inspection.check):
        refused("another program's database: it has the tables alembic_version, run", use, url_of(path))
    assert path.read_bytes() == content


def test_places_where_no_database_can_be(tmp_path: Path) -> None:
    for place, told in {
        url_of(tmp_path): "is a folder",
        url_of(tmp_path / "missing" / "results.db"): "No folder",
        "mysql://host/name": "mysql is not supported",
        "postgresql+nosuch://host/name": "no database URL",
        "sqlite://host:port/name": "no database URL",
    }.items():
        refused(told, db.connect, place)
    assert not (tmp_path / "missing").exists()


def test_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for url in ("postgresql://me:secret@host/name", "postgres://host/name?user=me&password=secret"):
        told = refused("needs the driver 'psycopg'", db.connect, url)
        assert told.hint == 'pip install "pflbench[postgres]"'
        assert "secret" not in str(told)


# What is not permitted: the file's mode (None: there is none), its folder's, and what is said.
NOT_PERMITTED = {
    "new file in a read-only folder": (None, 0o555, "Cannot open"),
    "read-only folder": (0o444, 0o555, "is read-only"),
    "read-only file": (0o444, 0o777, "is read-only"),
    "unreadable file": (0o000, 0o777, "Cannot open"),
}


@pytest.mark.parametrize(("mode", "folder_mode", "told"), NOT_PERMITTED.values(), ids=NOT_PERMITTED)
def test_no_permission(filled: Path, tmp_path: Path, mode: int | None, folder_mode: int, told: str) -> None:
    path = tmp_path / "closed" / "results.db"
    path.parent.mkdir()
    if mode is not None:
        shutil.copy(filled, path)
        path.chmod(mode)
    path.parent.chmod(folder_mode)

    def write_a_run() -> None:
        write.create_run(db.connect(url_of(path)), make_spec(seed=1), {})

    with unprivileged():
        error = refused(told, write_a_run)
    assert str(path) in str(error)


def test_locked_database(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "BUSY_SECONDS", 0.1)
    engine = db.connect(url_of(filled))
    other = sqlite3.connect(filled, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    refused("locked by another process", write.create_run, engine, make_spec(seed=1), {})
    other.execute("COMMIT")
    write.create_run(engine, make_spec(seed=1), {})


def test_damaged_database(filled: Path, damage: Callable[[Path], None]) -> None:
    damage(filled)
    assert any("damaged" in problem for problem in inspection.check(url_of(filled)))
    engine = db.connect(url_of(filled))
    refused("is damaged", rounds.clients, engine, 1)
    refused("is damaged", write.remove_run, engine, 1)


def test_errors_of_the_program_are_no_user_errors(filled: Path) -> None:
    engine = db.connect(url_of(filled))
    for text, kind in (
        ("SELECT colour FROM run", sa.exc.OperationalError),
        ("INSERT INTO run (id) VALUES (1)", sa.exc.IntegrityError),
    ):
        with pytest.raises(kind), failures.friendly(engine.url), engine.begin() as connection:
            connection.exec_driver_sql(text)


def test_server_that_does_not_answer_is_a_user_error() -> None:
    cause = ConnectionError("connection refused\nIs the server running?")

    def ask() -> None:
        with failures.friendly("postgresql://me:secret@host/x"):
            raise sa.exc.OperationalError("SELECT 1", {}, cause)

    assert "secret" not in str(refused("connection refused", ask))


def test_info_counts(filled: Path) -> None:
    write.create_run(db.connect(url_of(filled)), make_spec(seed=1), {})
    found = inspection.info(url_of(filled))
    assert (found["database"], found["kind"], found["schema"]) == (str(filled), "sqlite", db.head())
    assert found["runs"] == {"finished": 1, "queued": 1}
    assert (found["rounds"], found["partitions"], found["artifacts"]) == (4, 1, 8)
    assert found["bytes"] == filled.stat().st_size


AWAY = "DELETE FROM round WHERE round = 2"
ALTERED = """DROP INDEX ix_run_protocol; ALTER TABLE round ADD COLUMN energy REAL;
    CREATE TABLE s AS SELECT * FROM series; DROP TABLE series; ALTER TABLE s RENAME TO series"""
OTHERS = "UPDATE round SET accuracy_std = 0.5, test_loss = 1, params_up = 5, bytes_up = 68 WHERE round = 2"
TWICE = "UPDATE partition SET train_counts = replace(train_counts, '1', '2')"


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        ("DELETE FROM run", ["client_round belong to no run"]),
        (AWAY, [f"run 1, round 2: {what} without its round" for what in ("the series 'global'", "the array 'weights'")]),
        (AWAY, ["run 1, round 2: clients' results without their round"]),
        ("UPDATE run SET status = 'failed'; DELETE FROM round WHERE round = 0", ["round 0: missing; the run is failed"]),
        (OTHERS, ["std is 0.5, and 0.0290922 by", "loss is 1, and 0.11 by its clients", "array 'traffic' does not add up"]),
        (TWICE, ["the list train_0 has not the 4 samples of its counts"]),
        (ALTERED, ["not the tables of schema", "ix_run_protocol", "energy", "no check ck_series_accuracy"]),
    ],
    ids=["references", "series", "clients", "gap", "sums", "partition", "tables"],
)
def test_check_finds_what_does_not_fit(filled: Path, change: str, problems: list[str]) -> None:
    """Besides what an import refuses: `test_foreign` has the values."""
    assert inspection.check(url_of(filled)) == []
    with sqlite3.connect(filled) as connection:  # its foreign keys are off
        connection.executescript(change)
    connection.close()
    found = inspection.check(url_of(filled))
    assert all(any(problem in line for line in found) for problem in problems), found


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("spec", "{"), ("spec", "[" * 100_000), ("spec", "null"), ("spec", '{"train": {"optimizer": []}}'),
        ("environment", "[]"), ("environment", '{"plugin": 3}'),
    ],
)  # fmt: skip
def test_a_run_whose_json_is_damaged(filled: Path, shell: Shell, column: str, value: str) -> None:
    """Who reads it is told; `db check` names it, and it can be removed."""
    engine = db.connect(url_of(filled))
    other = write.create_run(engine, make_spec(seed=7), {})
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE run SET {column} = :value WHERE id = {other}"), {"value": value})
    engine.dispose()
    at = ("--db", str(filled))
    what = "specification" if column == "spec" else column
    for command in (("runs", "show", "2"), ("runs", "list")):
        told = shell.refused(*command, *at)
        assert f"Run 2 is damaged: its {what} is invalid" in told or "it should contain JSON" in told
        assert "`pflbench db check` names what is damaged" in told
    problems = parsed(shell("db", "check", "--json", *at), code=2)["problems"]
    assert [line for line in problems if "invalid" in line] == [f"run 2: its {what} is invalid"]
    assert shell("runs", "show", "1", *at).code == 0
    assert shell("runs", "rm", "2", "--yes", *at).code == 0
    assert inspection.check(url_of(filled)) == []


def test_a_run_in_a_read_only_folder_is_told_of_its_database(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with (
        pytest.raises(UserError, match=f"^{filled} can be read, but no run be made"),
        locks.locked(db.connect(url_of(filled)), "a" * 16),
    ):
        pass


def test_a_file_in_the_place_of_the_checkpoints_is_named(filled: Path) -> None:
    where = locks.folder(filled)
    where.write_text("")
    with pytest.raises(UserError, match=f"{where} cannot be written"), locks.locked(db.connect(url_of(filled)), "a" * 16):
        pass


def test_an_interruption_while_a_connection_is_closed_prints_no_traceback(tmp_path: Path) -> None:
    program = f"""
from pflbench.store import database

def interrupted(connection):
    connection.close()
    raise KeyboardInterrupt

engine = database.open_engine("sqlite:///{tmp_path / "a.db"}")
engine.connect().close()
engine.dialect.do_close = interrupted
try:
    engine.dispose()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
