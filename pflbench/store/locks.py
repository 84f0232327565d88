"""Who is at a run: a lock that lives as long as the process which holds it, in the folder of the checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from sqlalchemy import URL

from pflbench.errors import Occupied, UserError
from pflbench.store.failures import sqlite_path

try:
    import fcntl
except ImportError:  # Windows: no advisory locks there
    fcntl = None  # type: ignore[assignment]

UNDER_WAY = ("queued", "running")
PATIENCE = 0.5  # seconds: `present` holds a lock for a moment, and a process that is at the run holds it for long


def folder(database: Path | None) -> Path:
    """Where checkpoints and locks of a database's runs lie: beside an SQLite file, else in the working directory."""
    return Path(f"{database}.checkpoints") if database else Path("pflbench.checkpoints")


def present(url: URL, key: str, status: str) -> str:
    """The status as it is now: a run under way that no process is at was interrupted, and could not write that down.

    Only beside an SQLite file there is a lock to tell; elsewhere the status is what was written.
    """
    database = sqlite_path(url)
    if status not in UNDER_WAY or database is None or fcntl is None or _held(folder(database) / f"{key}.lock"):
        return status
    return "interrupted"


def _held(path: Path) -> bool:
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:  # another's, or one that cannot be asked
        return True


@contextmanager
def locked(where: Path, key: str) -> Iterator[None]:
    """Keeps other processes from the runs of a key. The lock dies with the process, also when it is killed.

    Raises UserError if another process holds it, or the folder cannot be written.
    """
    path = where / f"{key}.lock"
    try:
        where.mkdir(parents=True, exist_ok=True)
        handle = _own(path)
    except PermissionError as error:
        raise UserError(f"{where} cannot be written: {error.strerror}.", "Checkpoints lie there; choose another --db.") from None
    with handle:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _own(path: Path) -> IO[str]:
    until = time.monotonic() + PATIENCE
    while True:
        handle = path.open("w")
        if fcntl is None:
            return handle
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
            raise Occupied("Another process is at this run already.", "Wait for it, or stop it first.") from None
        # Whoever had the lock before has removed the file: a lock on what is no longer there would keep nobody out.
        with suppress(FileNotFoundError):
            if os.fstat(handle.fileno()).st_ino == path.stat().st_ino:
                return handle
        handle.close()
