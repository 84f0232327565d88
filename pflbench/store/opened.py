"""Whether the SQLite file that was opened is still what lies at its path, and no shorter.

SQLite itself does not look: it goes on with a file that has lost its name or its end, and what is written is lost with it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from pflbench.errors import UserError, Vanished

_OPTION = "opened"
_LOG = "opened_log"  # of a connection: the files that SQLite has beside the database, as they were
_HINT = "Nothing more is written to it. Put it back, or a backup in its place: the same command goes on with what is in it."


def watch(engine: Engine, path: Path, *, read_only: bool) -> None:
    """From its first connection on the engine opens this file and no other, which SQLite would make where there is none.

    Unless read_only, connecting raises UserError for a file with several names: each would have a write-ahead log of its own.
    """
    opened = _Opened(path, read_only)
    event.listen(engine, "do_connect", opened.before_connecting)
    event.listen(engine, "connect", opened.require)
    engine.update_execution_options(**{_OPTION: opened})


def require_in_place(connection: Connection, *, written: bool = False) -> None:
    """To be called before a transaction and, with `written`, after its commit.

    Raises Vanished where the file, or its write-ahead log, is no longer what lies at its path, or is shorter than it was.
    """
    opened: _Opened | None = connection.get_execution_options().get(_OPTION)
    if opened is None:
        return
    try:
        opened.require()
    except Vanished:
        # Else SQLite would read the log with what has taken the file's place. A file that was moved gets all of it.
        with suppress(sqlite3.Error):
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raise
    # A connection that has written has the log open, and SQLite removes none that is open.
    if known := connection.info.get(_LOG):
        connection.info[_LOG] = {path: _require(path, before) for path, before in known.items()}
    elif written:
        connection.info[_LOG] = {path: path.stat() for path in opened.beside if path.exists()}


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


def has_other_names(path: Path) -> bool:
    """By hard links. SQLite keeps its log under the name that it opens: two names, two logs, and a damaged file."""
    return path.is_file() and path.stat().st_nlink > 1


class _Opened:
    """The file of an engine. It is never opened here: closing it would drop the locks this process holds on it by SQLite."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self._path, self._read_only = path.absolute(), read_only
        self.beside = [Path(f"{path.resolve()}{suffix}") for suffix in ("-wal", "-shm")]  # behind a symbolic link
        self._file: os.stat_result | None = None

    def before_connecting(self, *_: Any) -> None:
        if self._file is not None:
            self.require()
        elif not self._read_only and has_other_names(self._path):
            raise UserError(
                f"{self._path} has {self._path.stat().st_nlink} names (hard links): written through both, it would be damaged.",
                "Make it a file of its own, `cp` it and `mv` the copy to its name; or remove the other name.",
            )

    def require(self, *_: Any) -> None:
        """Raises Vanished."""
        self._file = _require(self._path, self._file)


def _require(path: Path, before: os.stat_result | None) -> os.stat_result:
    """What is found there. Raises Vanished."""
    try:
        found = path.stat()
    except OSError:
        wrong = "is no longer there: it was removed or moved, or its folder was, while it was in use"
    else:
        if before is None or (os.path.samestat(found, before) and found.st_size >= before.st_size):
            return found
        wrong = "was replaced by another file while it was in use"
        if os.path.samestat(found, before):
            wrong = f"was cut short while it was in use: it has {found.st_size:,} bytes, and had {before.st_size:,}"
    raise Vanished(f"{path} {wrong}.", _HINT)
