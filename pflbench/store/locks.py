"""Locks of runs: one process trains a run. A lock of a file beside an SQLite database, or one in the server (`claims`).

Both end with their process.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from sqlalchemy import Engine

from pflbench.errors import Occupied, UserError
from pflbench.store import claims
from pflbench.store.failures import sqlite_path

UNDER_WAY = ("queued", "running")
OVER = ("finished", "diverged", "failed")
PATIENCE = 0.5  # seconds: `presence` holds a lock only for a moment


def folder(database: Path | None) -> Path:
    """The folder of a database's locks and checkpoints: beside the SQLite file; without one, in the working directory.

    Of a symbolic link, beside its target: both are names of the same database.
    """
    return Path(f"{database.resolve()}.checkpoints") if database else Path("pflbench.checkpoints")


RequireOwned = Callable[[], None]
"""Makes sure that this process still has the lock of a key. Raises Occupied if another process has taken over."""


def presence(engine: Engine) -> Callable[[str, str], str]:
    """A function from a run's key and stored status to its status now. A server is asked once for all runs.

    A queued or running run without a process was interrupted, and could not write that. A queued run with a process is running:
    it loads its data.
    """
    if engine.dialect.name == "postgresql":
        is_locked = claims.held(engine).__contains__
    else:
        is_locked = partial(_is_locked, folder(sqlite_path(engine.url)))

    def current(key: str, status: str) -> str:
        if status in OVER:
            return status
        if is_locked(key):
            return "running"
        return "interrupted" if status in UNDER_WAY else status

    return current


@contextmanager
def locked(engine: Engine, key: str) -> Iterator[RequireOwned]:
    """Locks the runs of a key for this process. The lock ends with the process, also if it is killed.

    Raises Occupied if another process has the lock, and UserError if the folder of an SQLite file's locks cannot be written.
    """
    if engine.dialect.name == "postgresql":
        with claims.claimed(engine, key) as claim:
            yield claim
        return
    database = sqlite_path(engine.url)
    where = folder(database)
    path = where / f"{key}.lock"
    try:
        where.mkdir(parents=True, exist_ok=True)
        handle = _own(path)
    except OSError as error:
        place = database or "The working directory"
        raise UserError(
            f"{place} can be read, but no run be made: {where} cannot be written: {error.strerror}.",
            "Checkpoints lie there; choose another --db.",
        ) from None
    with handle:
        try:
            yield lambda: None  # the lock of a file ends with its process
        finally:
            path.unlink(missing_ok=True)


def _is_locked(where: Path, key: str) -> bool:
    try:
        with (where / f"{key}.lock").open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError:  # locked by another process, or the file system has no locks
        return True


def _own(path: Path) -> IO[str]:
    until = time.monotonic() + PATIENCE
    while True:
        handle = path.open("w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
            raise Occupied("Another process is training this run.", "Wait for it, or stop it first.") from None
        # The process that had the lock removes the file: a lock of a removed file would keep nobody out.
        with suppress(FileNotFoundError):
            if os.fstat(handle.fileno()).st_ino == path.stat().st_ino:
                return handle
        handle.close()
