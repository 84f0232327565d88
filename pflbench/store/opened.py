"""Whether the SQLite file that was opened is still what lies at its path, and no shorter.

SQLite itself does not look: it goes on with a file that has lost its name or its end, and what is written is lost with it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from pflbench.errors import Vanished

Files = dict[Path, os.stat_result]
"""Files as they were found the last time."""

_HINT = "Nothing more is written to it. Put it back, or a backup in its place: the same command goes on with what is in it."
_DATABASE = "pflbench_database"  # option of an engine: its file
_LOG = "pflbench_log"  # of a connection: the files that SQLite has beside the database


def watch(engine: Engine, path: Path) -> None:
    """From its first connection on the engine opens this file and no other, which SQLite would make where there is none.

    The file is never opened here: closing it would drop the locks that this process holds on it by SQLite.
    """
    database: Files = {}
    path = path.absolute()
    event.listen(engine, "do_connect", lambda *_: _require_same(database))
    event.listen(engine, "connect", lambda *_: database.setdefault(path, path.stat()))
    engine.update_execution_options(**{_DATABASE: database})


def require_in_place(connection: Connection, *, written: bool = False) -> None:
    """To be called before a transaction and, with `written`, after its commit.

    Raises Vanished where the file, or its write-ahead log, is no longer what lies at its path, or is shorter than it was.
    """
    database: Files | None = connection.get_execution_options().get(_DATABASE)
    if database is None:  # on a server
        return
    try:
        _require_same(database)
    except Vanished:
        # Else SQLite would read the log with what has taken the file's place. A file that was moved gets all of it.
        with suppress(sqlite3.Error):
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raise
    log: Files = connection.info.setdefault(_LOG, {})
    _require_same(log)
    if written and not log:  # a connection that has written has the log open, and SQLite removes none that is open
        for path in database:
            beside = (Path(f"{path.resolve()}{suffix}") for suffix in ("-wal", "-shm"))  # of a symbolic link: beside its target
            log.update({path: path.stat() for path in beside if path.exists()})


@contextmanager
def in_place(connection: Connection, *, written: bool = False) -> Iterator[None]:
    """A block that reads or, if `written`, commits. Raises Vanished as `require_in_place`."""
    require_in_place(connection)
    try:
        yield
    except DBAPIError:
        require_in_place(connection)  # says more than what SQLite found in a file that was cut short
        raise
    if written:
        require_in_place(connection, written=True)


def _require_same(files: Files) -> None:
    """Raises Vanished."""
    for path, before in files.items():
        try:
            found = path.stat()
        except OSError:
            wrong = "is no longer there: it was removed or moved, or its folder was, while it was in use"
        else:
            if os.path.samestat(found, before) and found.st_size >= before.st_size:
                files[path] = found
                continue
            wrong = "was replaced by another file while it was in use"
            if os.path.samestat(found, before):
                wrong = f"was cut short while it was in use: it has {found.st_size:,} bytes, and had {before.st_size:,}"
        raise Vanished(f"{path} {wrong}.", _HINT)
