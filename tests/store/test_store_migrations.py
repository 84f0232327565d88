"""Migrations: from every revision to the newest, with rows in the tables. A new migration is tested without a new test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from support.store_samples import ROOT, finish, make_spec, python

from alembic import command
from pflbench.errors import UserError
from pflbench.store import database as db
from pflbench.store import inspection, schema, write

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database without our tables."""
    on_server = getattr(request, "param", "sqlite") == "postgresql"
    url = request.getfixturevalue("server").new(filled=False) if on_server else db.to_url(str(tmp_path / "results.db"))
    engine = db.open_engine(url)
    yield engine
    engine.dispose()


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def migrate(engine: Engine, to: str) -> None:
    with db.migrating(engine) as connection:
        command.upgrade(db.alembic_config(connection), to)


def tables(engine: Engine) -> list[sa.Table]:
    """The tables as they are in the database, in the order in which they can be filled."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    return [table for table in metadata.sorted_tables if table.name != db.VERSION_TABLE]


def fill(engine: Engine, rows: int = 3) -> None:
    """Rows in every table, whatever its columns are: row i refers to row i of other tables."""
    with engine.begin() as connection:
        for table in tables(engine):
            values = [{column.name: value_of(column, i) for column in table.columns} for i in range(1, rows + 1)]
            connection.execute(table.insert(), values)


def value_of(column: sa.Column[Any], i: int) -> Any:
    if column.foreign_keys or (column.primary_key and isinstance(column.type, sa.Integer)):
        return i
    kind: Any = column.type.python_type
    if isinstance(column.type, sa.JSON):
        return {"row": i}
    if column.name == "status":
        return schema.STATUSES[i]
    return {
        int: 100 * i,
        float: i / 8,
        str: f"{column.name[:8]}{i}",
        bytes: bytes([i, 0, 255]),
        datetime: datetime(2026, 1, i, tzinfo=UTC),
    }[kind]


def read(engine: Engine) -> Rows:
    with engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(table.select().order_by(*table.primary_key)).mappings()]
            for table in tables(engine)
        }


def assert_kept(before: Rows, after: Rows) -> None:
    """Every row is there with its old values in the columns that both schemas have."""
    assert before.keys() & after.keys()
    for name in before.keys() & after.keys():
        assert len(before[name]) == len(after[name]) == 3
        for old, new in zip(before[name], after[name], strict=True):
            common = old.keys() & new.keys()
            assert {key: new[key] for key in common} == {key: old[key] for key in common}, name


def shape(engine: Engine) -> dict[str, Any]:
    """All that SQLite itself says of tables: columns, keys, references and their ON DELETE, indexes, checks, WITHOUT ROWID."""
    found: dict[str, Any] = {}
    with engine.connect() as connection:

        def ask(text: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in connection.exec_driver_sql(text)]

        for _, name, kind, _, without_rowid, strict in ask("PRAGMA table_list"):
            if kind == "table" and not name.startswith("sqlite_") and name != db.VERSION_TABLE:
                indexes = {(row[1], row[2], row[3]) for row in ask(f'PRAGMA index_list("{name}")')}
                covered = {index: ask(f'PRAGMA index_info("{index}")') for index, _, _ in indexes}
                columns = {row[1:] for row in ask(f'PRAGMA table_info("{name}")')}
                references = {row[2:] for row in ask(f'PRAGMA foreign_key_list("{name}")')}
                text = ask(f"SELECT sql FROM sqlite_master WHERE name = '{name}'")[0][0]
                checks = {line.strip(", ") for line in re.findall(r"CONSTRAINT ck_.*", text)}
                counting = "AUTOINCREMENT" in text
                found[name] = (columns, references, indexes, covered, without_rowid, strict, checks, counting)
    return found


def test_newest_schema_is_that_of_the_models(engine: Engine) -> None:
    migrate(engine, db.head())
    models = db.open_engine("sqlite://")
    schema.Base.metadata.create_all(models)
    assert shape(engine) == shape(models)
    assert shape(engine)["client_round"][4] == 1  # WITHOUT ROWID
    assert [len(shape(engine)[name][6]) for name in ("run", "round", "client_round", "series")] == [7, 18, 4, 2]
    assert shape(engine)["run"][7]


@pytest.mark.servers
@pytest.mark.parametrize("start", db.revisions())
def test_upgrade_keeps_old_rows(engine: Engine, start: str) -> None:
    migrate(engine, start)
    fill(engine)
    before = read(engine)
    url = url_of(engine)
    assert db.upgrade(url) == (start, db.head())
    db.connect(url).dispose()
    assert_kept(before, read(engine))


def test_later_migration_copies_a_table_others_refer_to(engine: Engine, add_migration: Callable[..., Path]) -> None:
    """Numbers of runs are given out once, also after that. A user's view, which names the tables, stays."""
    url = url_of(engine)
    db.upgrade(url)
    fill(engine)
    before = read(engine)
    last = write.create_run(engine, make_spec(), {})
    write.remove_run(engine, last)
    view = "SELECT run.key, max(accuracy) FROM run JOIN round ON run.id = run_id GROUP BY run.id"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE VIEW best AS {view}")
    add_migration()
    engine.dispose()

    upgraded = db.connect(url)
    assert_kept(before, read(upgraded))
    assert [row["energy"] for row in read(upgraded)["run"]] == [7, 7, 7]
    with upgraded.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert len(connection.exec_driver_sql("SELECT * FROM best").all()) == 3
    assert write.create_run(upgraded, make_spec(), {}) == last + 1
    upgraded.dispose()


@pytest.mark.parametrize("then", ["raise OSError('power')", "op.execute('DELETE FROM run')"], ids=["raises", "orphans"])
def test_failed_migration_changes_nothing(engine: Engine, add_migration: Callable[..., Path], then: str) -> None:
    url = url_of(engine)
    old = db.upgrade(url)[1]
    fill(engine)
    before, tables_before = read(engine), shape(engine)
    add_migration(then)
    with pytest.raises((OSError, RuntimeError), match=r"power|references"):
        db.upgrade(url)
    assert (read(engine), shape(engine)) == (before, tables_before)
    with engine.connect() as connection:
        assert db.revision(connection) == old


def test_newer_database_is_refused(engine: Engine, add_migration: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, known = url_of(engine), db.scripts()
    add_migration()
    db.upgrade(url)
    monkeypatch.setattr(db, "scripts", lambda: known)
    db.revisions.cache_clear()
    content = Path(str(engine.url.database)).read_bytes()
    for use in (db.connect, db.upgrade, inspection.info, inspection.check):
        with pytest.raises(UserError, match="9999") as told:
            use(url)
        assert db.head() in told.value.message
        assert "update" in told.value.hint
        assert len(str(told.value).splitlines()) == 2
    assert Path(str(engine.url.database)).read_bytes() == content


CONNECT = """
import sys
from pathlib import Path
from pflbench.store import database as db
db.scripts = lambda: Path(sys.argv[1])
for url in sys.argv[2:]:
    print("ready", flush=True)
    sys.stdin.readline()
    engine = db.connect(url)
    with engine.connect() as connection:
        print(db.revision(connection), connection.exec_driver_sql("PRAGMA journal_mode").scalar(), flush=True)
"""


@pytest.mark.slow
def test_processes_upgrade_at_once(engine: Engine, add_migration: Callable[..., Path], tmp_path: Path) -> None:
    """Two databases, one after the other: one that is new, and one with rows of an older schema."""
    urls = [db.to_url(str(tmp_path / "new.db")), url_of(engine)]
    db.upgrade(urls[1])
    fill(engine)
    folder = add_migration()
    processes = [python(CONNECT, folder, *urls, stdin=subprocess.PIPE) for _ in range(4)]
    pipes = [(process.stdin, process.stdout) for process in processes if process.stdin and process.stdout]
    for _ in urls:
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 4
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        assert [out.readline() for _, out in pipes] == ["9999 wal\n"] * 4
    assert [finish(process) for process in processes] == [""] * 4
    assert [len(read(db.open_engine(url))["client_round"]) for url in urls] == [0, 3]


def test_migrations_are_found_in_an_installed_package(tmp_path: Path) -> None:
    """The layout of the wheel: pflbench/alembic, and no folder beside the package."""
    site = tmp_path / "site"
    package = ROOT / "pflbench"
    shutil.copytree(package / "store", site / "pflbench" / "store")
    shutil.copytree(package / "papers", site / "pflbench" / "papers")
    for file in ("__init__.py", "errors.py", "plain.py", "spec.py"):
        shutil.copy(package / file, site / "pflbench" / file)
    shutil.copytree(db.scripts(), site / "pflbench" / "alembic")
    code = "import sys; from pflbench.store import database as db; print(db.upgrade(sys.argv[1]), db.scripts())"
    url = db.to_url(str(tmp_path / "results.db"))
    out = finish(python(code, url, path=site, cwd=tmp_path))
    assert out == f"{(None, db.head())} {site / 'pflbench' / 'alembic'}\n"


def test_alembic_command_works_for_developers(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    environment = os.environ | {"PFLBENCH_DB": str(path), "PYTHONPATH": str(ROOT)}
    code = "import sys; from alembic.config import main; main(['upgrade', 'head']); main(['check'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert inspection.info(db.to_url(str(path)))["schema"] == db.head()
