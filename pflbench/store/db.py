"""Opening the database: where it is, its schema's revision, upgrades and checks.

SQLite runs in WAL mode with synchronous=NORMAL: a committed round survives the death of the process, though a power
failure may take the last ones. An engine must not be carried over a fork: each process connects by itself.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from pflbench.errors import NothingYet, UserError
from pflbench.store import readonly, reference
from pflbench.store.failures import BUSY_SECONDS, ELSEWHERE, place, sqlite_path
from pflbench.store.failures import friendly as friendly
from pflbench.store.schema import Base

VERSION_TABLE = "pflbench_version"  # a name of our own: other programs' databases have an alembic_version, too
_SMALLEST = 512  # bytes of an SQLite database; it would take the first bytes of a smaller file for a new one
_ADVISORY_LOCK = 0x70666C62  # "pflb"


def default_url() -> str:
    """The database of PFLBENCH_DB (a path or an SQLAlchemy URL), else pflbench.db in the working directory."""
    return to_url(os.environ.get("PFLBENCH_DB") or "pflbench.db")


def to_url(text: str) -> str:
    """A path or an SQLAlchemy URL as URL. Paths become absolute, so that a later chdir changes nothing."""
    if re.match(r"[A-Za-z][A-Za-z0-9_+]*://", text):
        return text
    path = os.path.abspath(os.path.expanduser(text))
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)


def connect(url: str, *, create: bool = True) -> Engine:
    """Opens the database at `url`; makes it, or upgrades its schema, where needed.

    With `create=False` a missing or empty database is an error, for commands that only read; what cannot be written, as on a
    read-only file system, is opened as `connect_read_only` does. Upgrading holds SQLite's write lock (PostgreSQL: an advisory
    lock), so that two processes that start at once end well.

    Raises:
        UserError: no such file or folder, not a database, another program's database, a newer schema, no permission.
    """
    engine = open_engine(url)
    if not create and readonly.needed(engine.url):
        return connect_read_only(url)
    try:
        with friendly(url):
            _require_place(engine.url, create)
            with engine.connect() as connection:
                found = revision(connection)
            if found is None and not create:
                raise _missing(engine.url)
            if found != head():
                _migrate(engine)
            if found != head() or create:
                _refresh(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def connect_read_only(url: str) -> Engine:
    """Opens an SQLite database so that nothing can be written to it; each commit of another process shows at once.

    Raises:
        UserError: as `connect` with create=False; also for a database of another kind, and for an old schema.
    """
    engine = open_engine(url, read_only=True)
    try:
        with friendly(url):
            _require_place(engine.url, create=False)
            with engine.connect() as connection:
                found = revision(connection)
        if found is None:
            raise _missing(engine.url)
        if found != head():
            raise UserError(
                f"{place(engine.url)} has the old schema {found}.", "Bring it up to date, or a copy of it: pflbench db upgrade"
            )
    except BaseException:
        engine.dispose()
        raise
    return engine


def upgrade(url: str) -> tuple[str | None, str]:
    """Brings the schema to the newest revision; returns the revisions before (None: a new database) and after."""
    engine = open_engine(url)
    try:
        with friendly(url):
            _require_place(engine.url, create=True)
            found = _migrate(engine)
            _refresh(engine)
            return found, head()
    finally:
        engine.dispose()


def info(url: str) -> dict[str, Any]:
    """What is in the database; an old schema is read as it is. `bytes` is None where it is not a file."""
    with _as_it_is(url) as (connection, found):
        engine = connection.engine
        path = sqlite_path(engine.url)
        runs = connection.exec_driver_sql("SELECT status, count(*) FROM run GROUP BY status ORDER BY status").all()
        return {
            "database": place(engine.url),
            "kind": engine.dialect.name,
            "bytes": path.stat().st_size if path else None,
            "schema": found,
            "newest_schema": head(),
            "runs": {str(status): int(count) for status, count in runs},
            **{f"{table}s": _count(connection, table) for table in ("round", "partition", "artifact")},
        }


def check(url: str) -> list[str]:
    """Problems of the database, in words; an empty list means a sound one. Reads every row."""
    with _as_it_is(url) as (connection, found):
        problems = []
        if connection.engine.dialect.name == "sqlite":
            damage = _damage(connection)
            if damage:
                return damage
            lost = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
            problems += [f"{n} rows of {table} belong to no {parent}" for (table, parent), n in lost.items()]
        if found != head():
            return [*problems, f"the schema is {found}, not {head()}: `pflbench db upgrade`"]
        return problems + _differences(connection) + _contradictions(connection)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that writes: committed at the end, rolled back on an error."""
    with friendly(engine.url), engine.connect() as connection:
        # A transaction that reads first and asks for the write lock later is refused at once when another process wrote
        # in between; one that asks at its beginning waits its turn.
        connection.execution_options(immediate=True)
        with connection.begin():
            yield connection


def revision(connection: Connection) -> str | None:
    """The schema's revision, None for an empty database.

    Raises:
        UserError: the tables are not ours, or newer than this pflbench.
    """
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    name = place(connection.engine.url)
    if VERSION_TABLE not in tables:
        raise UserError(
            f"{name} is another program's database: it has the tables {_some(tables)}.",
            f"pflbench needs a database of its own: {ELSEWHERE}",
        )
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    if found is not None and found not in revisions():
        raise UserError(
            f"{name} has the schema {found}; this pflbench knows schemas up to {head()}.",
            f"It was written by a newer pflbench: update this one. Or {ELSEWHERE}",
        )
    return found


@cache
def revisions() -> tuple[str, ...]:
    """All revisions, oldest first: the numbers that the migrations' file names begin with."""
    return tuple(sorted(path.name.split("_")[0] for path in (scripts() / "versions").glob("[0-9]*_*.py")))


def head() -> str:
    """The newest revision."""
    return revisions()[-1]


def scripts() -> Path:
    """The folder of the migrations: inside the package where it was installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "alembic"
    return installed if (installed / "env.py").is_file() else package.parent / "alembic"


def open_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine with our settings, and nothing checked: the file may be missing, old or no database at all.

    Raises UserError for what is no URL, and for read_only where the database is no SQLite file.
    """
    try:
        target = sa.make_url(url)
        if read_only:
            engine = sa.create_engine(target, creator=readonly.reader(target))
        elif target.get_backend_name() != "sqlite":
            return sa.create_engine(target)
        else:
            engine = sa.create_engine(target, connect_args={"timeout": BUSY_SECONDS})
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise UserError(f"'{url}' is no database URL.", "Give a path, or e.g. postgresql+psycopg://user@host/name.") from None
    except ModuleNotFoundError as error:
        raise UserError(f"{place(target)} needs the driver '{error.name}'.", f"pip install {error.name}") from None
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def migrating(engine: Engine) -> Iterator[Connection]:
    """One transaction for changing the schema. It holds the write lock from its beginning to its end."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            yield connection
        return
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        # Altering a table copies and drops it, which would delete the rows that refer to it.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            connection.execution_options(immediate=True)
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise RuntimeError(f"The migration broke {len(broken)} references; it was rolled back.")
            _use_wal(driver)
        finally:
            driver.execute("PRAGMA foreign_keys=ON")


def alembic_config(connection: Connection) -> Any:
    """The Alembic configuration that runs our migrations on `connection`."""
    from alembic.config import Config  # takes 0.1 s, and is needed for upgrades and checks only

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def _as_it_is(url: str) -> Iterator[tuple[Connection, str]]:
    """A connection to an existing database and its revision, upgrading nothing."""
    engine = open_engine(url)
    if readonly.needed(engine.url):
        engine = open_engine(url, read_only=True)
    try:
        with friendly(url):
            _require_place(engine.url, create=False)
            with engine.connect() as connection:
                found = revision(connection)
                if found is None:
                    raise _missing(engine.url)
                yield connection, found
    finally:
        engine.dispose()


def _count(connection: Connection, table: str) -> int:
    return int(connection.exec_driver_sql(f'SELECT count(*) FROM "{table}"').scalar_one())


def _damage(connection: Connection) -> list[str]:
    """What SQLite's own check of the file says, as far as it gets."""
    try:
        lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    except OperationalError:  # locked, say: the file may be sound
        raise
    except DatabaseError as error:
        return [f"damaged: {error.orig}"]
    return [f"damaged: {line}" for line in lines if line != "ok"]


def _differences(connection: Connection) -> list[str]:
    """Where the tables are not those of the models."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return [f"not the tables of schema {head()}: {change}" for change in compare_metadata(context, Base.metadata)]


def _contradictions(connection: Connection) -> list[str]:
    """Rows that contradict each other: each rule is checked in one pass over a table."""
    problems = []
    for what, query in _RULES.items():
        runs = connection.exec_driver_sql(query).scalars().all()
        if runs:
            problems.append(f"{what}: run {', '.join(map(str, runs[:10]))}{' and more' if len(runs) > 10 else ''}")
    return problems


_RULES = {
    "clients' results without their round": """
        SELECT DISTINCT c.run_id FROM client_round c LEFT JOIN round r ON r.run_id = c.run_id AND r.round = c.round
        WHERE r.run_id IS NULL ORDER BY 1""",
    "accuracy that is not that of the round's clients": """
        SELECT DISTINCT r.run_id FROM round r JOIN
        (SELECT run_id, round, 1.0 * sum(correct) / sum(total) AS pooled FROM client_round GROUP BY run_id, round
         HAVING sum(total) > 0) c
        ON c.run_id = r.run_id AND c.round = r.round WHERE abs(r.accuracy - c.pooled) > 1e-6 ORDER BY 1""",
    "more correct predictions than test samples": """
        SELECT DISTINCT run_id FROM client_round WHERE correct < 0 OR correct > total ORDER BY 1""",
    "finished, but rounds are missing": """
        SELECT id FROM run WHERE status = 'finished'
        AND (SELECT count(*) FROM round WHERE run_id = run.id) != run.rounds + 1 ORDER BY 1""",
}


def _migrate(engine: Engine) -> str | None:
    with migrating(engine) as connection:
        found = revision(connection)  # again: another process may have been faster
        if found != head():
            from alembic import command

            command.upgrade(alembic_config(connection), "head")
    return found


def _refresh(engine: Engine) -> None:
    """The table of the papers' values, should the package have others by now."""
    with engine.connect() as connection:
        current = reference.is_current(connection)
    if not current:
        with writing(engine) as connection:
            reference.fill(connection)


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin in _begin_sqlite, also those that change tables
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _use_wal(connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:  # SQLite does not always wait here for another process's lock
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _require_place(url: URL, create: bool) -> None:
    # The file itself is never opened here: closing it would drop the locks this process holds on it through SQLite.
    path = sqlite_path(url)
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a database.", f"Name a file in it, e.g. {path / 'pflbench.db'}.")
    if not path.parent.is_dir():
        raise UserError(f"No folder {path.parent} for the database {path.name}.", f"Make it first; {ELSEWHERE}")
    if path.exists() and 0 < path.stat().st_size < _SMALLEST:
        raise UserError(f"{path} is not a SQLite database.", ELSEWHERE)
    if not create and not path.exists():
        raise _missing(url)


def _missing(url: URL) -> UserError:
    return NothingYet(f"No results yet: there is no database at {place(url)}.", f"`pflbench run ...` makes one; {ELSEWHERE}")


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
