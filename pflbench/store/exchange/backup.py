"""A copy of a database while runs go on writing to it: the whole of one moment, or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection

from pflbench.errors import UserError
from pflbench.store import files, journal
from pflbench.store.database import as_it_is, connect, connect_read_only, to_url
from pflbench.store.exchange import copy
from pflbench.store.failures import friendly, place

Progress = Callable[[int, int], None]
"""Is told how many pages are copied, and how many there are."""

_PAGES = 1000  # at a time


def backup(url: str, target: Path, progress: Progress = lambda done, pages: None) -> None:
    """Copies the database at `url` into a new file, checks the copy, and gives it its name only then.

    A database on a server is copied row by row. Raises UserError if there is such a file, it cannot be written, or the
    database is damaged; then nothing is left of the copy.
    """
    _require_new(target)
    try:
        with files.aside_by_name(target) as partial:
            with as_it_is(url) as (connection, _):
                if connection.dialect.name == "sqlite":
                    with friendly(to_url(str(target))):
                        _copy_pages(connection, partial, progress, target)
            if connection.dialect.name != "sqlite":
                _copy_rows(url, partial)
            _require_sound(partial, place(connection.engine.url))
            _require_new(target)
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}.", "Name a file in a writable folder.") from None


def _copy_pages(connection: Connection, partial: Path, progress: Progress, target: Path) -> None:
    """In steps, all of the moment of the read transaction that is under way: nobody waits for it beside a write-ahead log."""
    source = connection.connection.driver_connection
    assert isinstance(source, sqlite3.Connection)
    into = sqlite3.connect(partial)
    try:
        source.backup(into, pages=_PAGES, progress=lambda _, left, pages: progress(pages - left, pages), sleep=0)
        # One file, which stands for itself; and with the journal that is safe where it lies.
        into.execute("PRAGMA journal_mode=DELETE")
        if journal.kind(source) == journal.WAL and not journal.network(target):
            into.execute("PRAGMA journal_mode=WAL")
    finally:
        into.close()


def _copy_rows(url: str, partial: Path) -> None:
    there, here = connect_read_only(url), connect(to_url(str(partial)))
    try:
        copy.copy(there, here)
    finally:
        there.dispose()
        here.dispose()


def _require_sound(partial: Path, name: str) -> None:
    connection = sqlite3.connect(partial)
    try:
        connection.execute("PRAGMA ignore_check_constraints=ON")  # rows that the schema would refuse are no damage
        found = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = str(error)
    finally:
        connection.close()
    if found != "ok":
        hint = "`pflbench db repair -o NEW` saves what can be read."
        raise UserError(f"{name} is damaged, and so is a copy of it: {found}", hint)


def _require_new(target: Path) -> None:
    if target.exists():
        raise UserError(f"{target} is there already.", "A backup replaces nothing: name a new file.")
    if not target.absolute().parent.is_dir():
        raise UserError(f"No folder {target.absolute().parent} for the backup.", "Make it first.")
