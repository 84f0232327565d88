"""Whether the SQLite file that was opened is still what lies at its path. Where it is not, all of it is kept in another one.

SQLite goes on with a file that has lost its name, and what is written to it is lost with the process.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from pflbench.errors import Vanished

try:
    import fcntl
except ImportError:  # Windows: no advisory locks there
    fcntl = None  # type: ignore[assignment]

_OPTION = "opened"
_LOG = "opened_log"  # of a connection: what its log was
_SHARED = (0x40000002, 510)  # first byte and number of those that SQLite's readers lock
_PATIENCE = 1000  # milliseconds for others that read the file


def watch(engine: Engine, path: Path, *, keep: bool) -> None:
    """From its first connection on the engine opens this file and no other, which SQLite would make where there is none.

    keep: should it vanish, all that was in it, in another file.
    """
    opened = _Opened(path, keep)
    event.listen(engine, "do_connect", opened.before)
    event.listen(engine, "connect", opened.after)
    engine.update_execution_options(**{_OPTION: opened})


def require_in_place(connection: Connection, *, written: bool = False) -> None:
    """To be called before a transaction and, with `written`, after its commit.

    Raises Vanished where the file, or its write-ahead log, is no longer what lies at its path.
    """
    opened: _Opened | None = connection.get_execution_options().get(_OPTION)
    if opened is not None:
        opened.require(connection, written)


def putting_back(kept: Path, path: Path) -> str:
    """The command for it."""
    return shlex.join(["mv", str(kept), str(path)])


class _Opened:
    """The file of an engine. It is never opened here: closing it would drop the locks this process holds on it by SQLite."""

    def __init__(self, path: Path, keep: bool) -> None:
        self._path, self._keep = path.absolute(), keep
        self._behind = path.resolve()  # a link: there SQLite makes its files, and checkpoints lie
        self._beside = tuple(f"{self._behind}-{of}" for of in ("wal", "shm"))  # its write-ahead log, and the index of that
        self._file: tuple[int, int] | None = None
        self._kept: Path | None = None

    def before(self, *_: Any) -> None:
        if self._file is not None and (wrong := self._wrong()):
            raise self._vanished(wrong)

    def after(self, raw: sqlite3.Connection, _: Any) -> None:
        self._file = self._file or _identity(self._path)
        if wrong := self._wrong():
            raw.close()
            raise self._vanished(wrong)

    def require(self, connection: Connection, written: bool) -> None:
        gone = self._wrong()
        wrong = gone or self._wrong_log(connection, written)
        if not wrong:
            return
        raw = connection.connection.driver_connection
        if self._keep and self._kept is None and isinstance(raw, sqlite3.Connection):
            self._kept = self._copied(raw)
            if not gone:
                _leave_as_it_is(self._behind)
            elif self._kept is not None:
                _empty_log(raw)
        raise self._vanished(wrong)

    def _wrong_log(self, connection: Connection, written: bool) -> str:
        """A connection that has written has the log open, and SQLite removes none that is open."""
        found, known = tuple(map(_identity, self._beside)), connection.info.get(_LOG)
        if known is None and written and all(found):
            connection.info[_LOG] = found
        if known in (None, found):
            return ""
        return f"{self._path}: the -wal or -shm file beside it, a part of it, was removed or replaced while it was in use."

    def _wrong(self) -> str:
        found = _identity(self._path)
        if found is None:
            return f"{self._path} is no longer there: it was removed or moved, or its folder was, while it was in use."
        return "" if found == self._file else f"{self._path} was replaced by another file while it was in use."

    def _vanished(self, wrong: str) -> Vanished:
        if self._kept is None:
            return Vanished(wrong, "Nothing more is written to it.")
        ways = [f"`{shlex.join(['pflbench', 'import', str(self._kept)])}` takes its runs into another database."]
        if self._behind.parent.is_dir() and not self._behind.exists():
            ways.insert(0, f"`{putting_back(self._kept, self._behind)}` puts it back,")
        return Vanished(wrong, f"All that was in it is kept: {' '.join(ways)}", self._kept)

    def _copied(self, raw: sqlite3.Connection) -> Path | None:
        for folder in _folders(self._behind.parent):
            with suppress(OSError, sqlite3.Error):
                return _copied_into(folder, self._behind, raw)
        return None


def rescued(path: Path) -> list[Path]:
    """Files beside a database's path, in which it was kept when it had vanished."""
    path = path.resolve()
    return sorted(path.parent.glob(f"{path.stem}.rescued*{path.suffix}"))


def _empty_log(raw: sqlite3.Connection) -> None:
    """So that neither the old file nor what takes its place is read with rows that are not its own."""
    with suppress(sqlite3.Error):
        raw.execute(f"PRAGMA busy_timeout={_PATIENCE}")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _leave_as_it_is(path: Path) -> None:
    """Closing the last connection writes a log into the file. One that nobody else sees would undo what others wrote since.

    To SQLite this is the lock of another reader. It lasts as long as the process, as closing it would drop SQLite's own.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return
    with suppress(OSError):
        fcntl.fcntl(os.open(path, os.O_RDONLY), fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, *_SHARED, 0))


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _folders(beside: Path) -> Iterator[Path]:
    """Where a copy may lie: beside the path, else in the working directory, which may be gone as well."""
    if beside.is_dir():
        yield beside
    with suppress(OSError):
        yield Path.cwd()
    yield Path(tempfile.gettempdir())


def _copied_into(folder: Path, path: Path, raw: sqlite3.Connection) -> Path:
    """A copy of all that the connection sees, or one that another process has made of the same. Raises OSError, sqlite3.Error."""
    for name in _names(folder, path):
        if not name.exists():
            break
        if _has_all(name, raw):
            return name
    partial = folder / f".{path.stem}.rescued.{os.getpid()}.partial"
    try:
        with closing(sqlite3.connect(partial)) as copy:
            raw.backup(copy)
        for name in _names(folder, path):
            try:
                name.touch(exist_ok=False)
            except FileExistsError:
                if _has_all(name, raw):
                    return name
            else:
                partial.replace(name)
                return name
        raise AssertionError  # names do not end
    finally:
        for left in folder.glob(f"{partial.name}*"):
            left.unlink()


def _names(folder: Path, path: Path) -> Iterator[Path]:
    for number in count(1):
        yield folder / f"{path.stem}.rescued{f'-{number}' if number > 1 else ''}{path.suffix}"


def _has_all(name: Path, raw: sqlite3.Connection) -> bool:
    """Whether a file is a copy of what the connection sees: the same runs, begun at the same times, and no row less."""
    try:
        with closing(sqlite3.connect(f"{name.as_uri()}?mode=rw", uri=True)) as copy:
            mine, there = (_content(each) for each in (raw, copy))
    except sqlite3.Error:
        return False
    return mine[0] == there[0] and mine[1].keys() == there[1].keys() and all(there[1][t] >= n for t, n in mine[1].items())


def _content(raw: sqlite3.Connection) -> tuple[list[Any], dict[str, int]]:
    runs = raw.execute("SELECT id, key, attempt, created_at, started_at FROM run ORDER BY id").fetchall()
    tables = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return runs, {table: raw.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in tables}
