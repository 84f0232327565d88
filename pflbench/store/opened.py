"""Checks that the SQLite file that was opened still lies at its path, and has not become shorter.

SQLite does not check: it goes on writing to a file that was removed or cut short, and these rows are lost.
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
_HINT = "Nothing more is written to it. Put it back, or a backup in its place: the same command goes on with what is in it."

Found = tuple[int, int, int]  # device, inode, size


def watch(engine: Engine, path: Path, *, read_only: bool) -> None:
    """Makes the engine open the same file for all its connections: SQLite would make a new one if there is none.

    Unless read_only, connecting raises UserError for a file with several names: each would have a write-ahead log of its own.
    """
    opened = _Opened(path, read_only)
    event.listen(engine, "do_connect", opened.before_connect)
    event.listen(engine, "connect", opened.after_connect)
    engine.update_execution_options(**{_OPTION: opened})


def require_in_place(connection: Connection) -> None:
    """Raises Vanished if the file no longer lies at its path, or is shorter than it was. Called before and after transactions."""
    opened: _Opened | None = connection.get_execution_options().get(_OPTION)
    if opened is not None:
        opened.require(connection)


@contextmanager
def in_place(connection: Connection) -> Iterator[None]:
    """Raises Vanished, as `require_in_place`, before the block and if it fails."""
    require_in_place(connection)
    try:
        yield
    except DBAPIError:
        require_in_place(connection)  # says more than SQLite's error for a file that was cut short
        raise


def has_other_names(path: Path) -> bool:
    """Whether the file has hard links. SQLite keeps a log for each name: two logs damage the file."""
    return path.is_file() and path.stat().st_nlink > 1


class _Opened:
    """The file of an engine. Never opens it: closing it would drop the locks that this process holds on it through SQLite."""

    def __init__(self, path: Path, read_only: bool) -> None:
        self._path, self._read_only = path.absolute(), read_only
        self._known: Found | None = None

    def before_connect(self, *_: Any) -> None:
        if self._known is not None:
            self._look()
        elif not self._read_only and has_other_names(self._path):
            raise UserError(
                f"{self._path} has {self._path.stat().st_nlink} names (hard links): written through both, it would be damaged.",
                "Make it a file of its own, `cp` it and `mv` the copy to its name; or remove the other name.",
            )

    def after_connect(self, raw: sqlite3.Connection, _: Any) -> None:
        try:
            self._look()
        except Vanished:
            raw.close()
            raise

    def require(self, connection: Connection) -> None:
        try:
            self._look()
        except Vanished:
            _empty_log(connection)
            raise

    def _look(self) -> None:
        """Raises Vanished."""
        known, found = self._known, _found(self._path)
        if found is None:
            wrong = "is no longer there: it was removed or moved, or its folder was, while it was in use"
        elif known is not None and found[:2] != known[:2]:
            wrong = "was replaced by another file while it was in use"
        elif known is not None and found[2] < known[2]:
            wrong = f"was cut short while it was in use: it has {found[2]:,} bytes, and had {known[2]:,}"
        else:
            self._known = found
            return
        raise Vanished(f"{self._path} {wrong}.", _HINT)


def _empty_log(connection: Connection) -> None:
    """Empties the write-ahead log into the file. Else SQLite would apply it to the file that has taken this one's place."""
    raw = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        with suppress(sqlite3.Error):
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _found(path: Path) -> Found | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size
