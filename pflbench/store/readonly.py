"""Reading an SQLite file that cannot be written, or must not be."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import URL

from pflbench.errors import UserError
from pflbench.store.failures import BUSY_SECONDS, place, sqlite_path


def needed(url: URL) -> bool:
    """Whether there is such a file and it, or its folder, cannot be written, as on a read-only file system."""
    path = sqlite_path(url)
    return path is not None and path.is_file() and not all(os.access(each, os.W_OK) for each in (path, path.absolute().parent))


def reader(url: URL) -> Callable[[], sqlite3.Connection]:
    """Makes connections that SQLite itself holds to reading. Raises UserError for what is no SQLite file."""
    path = sqlite_path(url)
    if path is None:
        raise UserError(f"{place(url)} is no SQLite file.", "Only a file can be opened read-only.")
    path, options, copy = path.absolute(), "mode=ro", None
    if path.is_file() and not os.access(path.parent, os.W_OK):
        # Readers of a write-ahead log need an index of it beside the file, which they cannot make there.
        logged = Path(f"{path}-wal")
        if not logged.exists() or not logged.stat().st_size:
            options += "&immutable=1"
        elif not Path(f"{path}-shm").exists():
            copy = tempfile.TemporaryDirectory(prefix="pflbench-")
            path = _copied(path, logged, Path(copy.name))

    def connect(_kept: object = copy) -> sqlite3.Connection:  # the copy is there as long as the function is
        return sqlite3.connect(f"{path.as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS, check_same_thread=False)

    return connect


def _copied(database: Path, logged: Path, folder: Path) -> Path:
    for each in (database, logged):
        shutil.copyfile(each, folder / each.name)
    return folder / database.name
