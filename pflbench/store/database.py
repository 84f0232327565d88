"""Opens the database, upgrades its schema, and makes transactions.

SQLite has a write-ahead log and synchronous=NORMAL: a committed round survives the death of the process, though a power
failure may take the last ones; on network file systems a rollback journal (`journal`). An engine must not be carried over a
fork: each process connects by itself.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError

from pflbench.errors import NothingYet, UserError
from pflbench.plain import without_passwords
from pflbench.store import journal
from pflbench.store.failures import BUSY_SECONDS, ELSEWHERE, friendly, from_json, place, sqlite_path
from pflbench.store.opened import in_place, watch

# SQLAlchemy raises what it logs. Without a handler Python would also print it, with a traceback: a Ctrl-C while a file is closed.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())

T = TypeVar("T")
VERSION_TABLE = "pflbench_version"  # a name of our own: other programs' databases have an alembic_version, too
_SMALLEST = 512  # bytes of an SQLite database; SQLite takes a smaller file for a new database
_ADVISORY_LOCK = 0x70666C62  # "pflb"


def to_url(text: str) -> str:
    """A path or an SQLAlchemy URL as URL. Paths become absolute, so that a later chdir changes nothing."""
    if re.match(r"[A-Za-z][A-Za-z0-9_+]*://", text):
        return text
    path = os.path.abspath(os.path.expanduser(text))
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)


def connect(url: str, *, create: bool = True) -> Engine:
    """Opens the database at `url`; makes it, or upgrades its schema, where needed.

    With `create=False`, for commands that only read, a missing or empty database is an error, and what cannot be written is
    opened as `connect_read_only` does. Raises UserError for no such file or folder, not a database, another program's database,
    a newer schema, no permission.
    """
    with _opening(url, create=create) as (engine, schema):
        if schema != head():
            _migrate(engine)
        return engine


def connect_read_only(url: str) -> Engine:
    """Opens a database so that nothing can be written to it. Raises UserError as `connect`, and for an old schema."""
    with _opening(url, read_only=True) as (engine, schema):
        if schema != head():
            name = place(engine.url)
            raise UserError(f"{name} has the old schema {schema}.", "Bring it up to date, or a copy of it: pflbench db upgrade")
        return engine


def upgrade(url: str) -> tuple[str | None, str]:
    """Brings the schema to the newest revision; returns the revisions before (None: a new database) and after."""
    with _opening(url, create=True) as (engine, _):
        before = _migrate(engine)
    engine.dispose()
    return before, head()


@contextmanager
def as_it_is(url: str, *, read_only: bool = False) -> Iterator[tuple[Connection, str]]:
    """Connects to an existing database and gives its revision with the connection; upgrades nothing."""
    with _opening(url, read_only=read_only) as (engine, schema):
        assert schema is not None
        with engine.connect() as connection:
            yield connection, schema
    engine.dispose()


@contextmanager
def _opening(url: str, *, read_only: bool = False, create: bool = False) -> Iterator[tuple[Engine, str | None]]:
    """An engine for a database of ours, and its revision; None for an empty one, which is an error unless `create`.

    What must not be written is opened for reading alone. An error in the block disposes of the engine.
    """
    engine = open_engine(url, read_only=read_only)
    if not create and _is_write_protected(engine.url):
        engine = open_engine(url, read_only=True)
    try:
        with friendly(url):
            _require_place(engine.url, create)
            with engine.connect() as connection:
                schema = revision(connection)
            if schema is None and not create:
                raise _missing(engine.url)
            yield engine, schema
    except BaseException:
        engine.dispose()
        raise


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection for reading. Raises UserError for what the user can mend (a damaged or locked file), and Vanished."""
    with friendly(engine.url), engine.connect() as connection, in_place(connection):
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction that writes: committed at the end, rolled back on an error. Raises Vanished, also after the commit."""
    with friendly(engine.url), engine.connect() as connection, in_place(connection, written=True):
        # SQLite refuses a transaction that reads first and asks for the write lock later if another process wrote in between.
        # A transaction that asks for the lock at its beginning waits for it.
        connection.execution_options(immediate=True)
        with connection.begin():
            yield connection


def retry_insert(work: Callable[[], T]) -> T:
    """Retries `work` if another process has inserted the same row meanwhile. SQLite has a single writer, a server many."""
    for _ in range(20):
        with suppress(IntegrityError):
            return work()
    return work()


def inserted(connection: Connection, statement: Any) -> int:
    """Inserts a row; returns its primary key."""
    key = connection.execute(statement).inserted_primary_key
    assert key is not None
    return int(key[0])


def revision(connection: Connection) -> str | None:
    """The schema's revision, None for an empty database. Raises UserError for other programs' tables, and for newer ones."""
    tables = sorted(sa.inspect(connection).get_table_names())
    if not tables:
        return None
    name = place(connection.engine.url)
    if VERSION_TABLE not in tables:
        raise UserError(
            f"{name} is another program's database: it has the tables {', '.join(tables[:3])}{', ...' if tables[3:] else ''}.",
            f"pflbench needs a database of its own: {ELSEWHERE}",
        )
    stored = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    if stored is not None and stored not in revisions():
        raise UserError(
            f"{name} has the schema {stored}; this pflbench knows schemas up to {head()}.",
            f"It was written by a newer pflbench: update this one. Or {ELSEWHERE}",
        )
    return stored


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
    """An engine with our settings. Checks nothing: the file may be missing, old or no database at all.

    Raises UserError for what is no URL, and for read_only where the database is neither an SQLite file nor on PostgreSQL.
    """
    try:
        target = sa.make_url(url)
        if target.get_backend_name() not in ("sqlite", "postgresql", "postgres"):
            raise UserError(
                f"{target.get_backend_name()} is not supported as a results database.",
                "Give a file, or postgresql://user@host/name.",
            )
        if "@" in (target.host or ""):
            raise UserError("The password in the database's URL has an @.", "Write it as %40, or leave it to ~/.pgpass.")
        if target.drivername in ("postgresql", "postgres"):
            target = target.set(drivername="postgresql+psycopg")
        if target.drivername == "postgresql+psycopg":
            return _server(target, read_only)
        how: dict[str, Any] = {"creator": _reader(target)} if read_only else {"connect_args": {"timeout": BUSY_SECONDS}}
        engine = sa.create_engine(target, json_deserializer=from_json, **how)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise UserError(
            f"'{without_passwords(url, alone=True)}' is no database URL.", "Give a path, or e.g. postgresql://user@host/name."
        ) from None
    except ImportError:  # also if psycopg is installed without its library
        raise UserError(f"{place(target)} needs the driver 'psycopg'.", 'pip install "pflbench[postgres]"') from None
    if path := sqlite_path(target):
        watch(engine, path)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def migrating(engine: Engine) -> Iterator[Connection]:
    """One transaction that changes the schema and holds the write lock all the time."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            yield connection
        return
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        # Altering a table copies and drops it, which would delete the rows that refer to it.
        driver.execute("PRAGMA foreign_keys=OFF")
        driver.execute("PRAGMA legacy_alter_table=ON")  # nor does SQLite check users' views while a table is being copied
        journal.begin(driver, sqlite_path(engine.url))
        try:
            connection.execution_options(immediate=True)
            with connection.begin():
                before = Counter(connection.exec_driver_sql("PRAGMA foreign_key_check").all())
                yield connection
                broken = Counter(connection.exec_driver_sql("PRAGMA foreign_key_check").all()) - before
                if broken:
                    raise RuntimeError(f"The migration broke {broken.total()} references; it was rolled back.")
        finally:
            driver.execute("PRAGMA legacy_alter_table=OFF")
            driver.execute("PRAGMA foreign_keys=ON")


def alembic_config(connection: Connection) -> Any:
    """The Alembic configuration that runs our migrations on `connection`."""
    from alembic.config import Config  # takes 0.1 s, and is needed for upgrades and checks only

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _migrate(engine: Engine) -> str | None:
    with migrating(engine) as connection:
        before = revision(connection)  # again: another process may have been faster
        if before != head():
            from alembic import command

            command.upgrade(alembic_config(connection), "head")
    return before


def _server(target: URL, read_only: bool) -> Engine:
    """An engine that finds out within half a minute that the server is gone, and connects anew when it is back."""
    settings = {"connect_timeout": 5, "keepalives_idle": 30, "tcp_user_timeout": 30_000, "application_name": "pflbench"}
    if read_only:
        settings["options"] = "-c default_transaction_read_only=on"
    # The URL's own settings take precedence.
    own = {name: value for name, value in settings.items() if name not in target.query}
    return sa.create_engine(target, connect_args=own, pool_pre_ping=True)


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # transactions begin in _begin_sqlite, also those that change tables
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")  # a file may come from anywhere
    journal.prepare(connection)


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _is_write_protected(url: URL) -> bool:
    """Whether the file exists and must not be written, or cannot be, as on a read-only file system."""
    path = sqlite_path(url)
    if path is None or not path.is_file():
        return False
    return _has_other_names(path) or not all(os.access(each, os.W_OK) for each in (path, path.resolve().parent))


def _has_other_names(path: Path) -> bool:
    """By hard links. SQLite keeps its log under the name that it opens: two names, two logs, and a damaged file."""
    return path.is_file() and path.stat().st_nlink > 1


def _reader(url: URL) -> Callable[[], sqlite3.Connection]:
    """Makes connections that cannot write. Raises UserError if the database is no SQLite file."""
    path = sqlite_path(url)
    if path is None:
        raise UserError(f"{place(url)} cannot be opened read-only.", "An SQLite file can, and a database on PostgreSQL.")
    path, options = path.resolve(), "mode=ro"  # the log lies beside the file, not beside a link to it
    log = Path(f"{path}-wal")
    if path.is_file() and not os.access(path.parent, os.W_OK) and not (log.exists() and log.stat().st_size):
        options += "&immutable=1"  # to read a log SQLite makes an index beside the file, which it cannot there
    uri = f"{path.as_uri()}?{options}"
    return lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)


def _require_place(url: URL, create: bool) -> None:
    # Never opens the file: closing it would drop the locks that this process holds on it through SQLite.
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
    if create and _has_other_names(path):
        raise UserError(
            f"{path} has {path.stat().st_nlink} names (hard links): written through both, it would be damaged.",
            "Make it a file of its own, `cp` it and `mv` the copy to its name; or remove the other name.",
        )


def _missing(url: URL) -> UserError:
    path = sqlite_path(url)
    why = f"there is no database at {path}" if path and not path.exists() else f"{place(url)} is empty"
    return NothingYet(f"No results yet: {why}.", f"`pflbench run` makes one; {ELSEWHERE}")
