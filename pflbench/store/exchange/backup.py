"""`db backup`: copies a snapshot of a database while runs go on writing to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pflbench.errors import UserError
from pflbench.store import files
from pflbench.store.database import as_it_is, connect, connect_read_only, to_url
from pflbench.store.exchange import copy
from pflbench.store.failures import RECOVER, place, sqlite_path


def backup(url: str, target: Path) -> None:
    """Copies the database at `url` into a new file and checks the copy. The file gets its name only then.

    A database on a server is copied row by row. Raises UserError if the file exists, it cannot be written, or the database is
    damaged; then no copy is left.
    """
    with new_file(target, "A backup") as partial:
        with as_it_is(url, read_only=True) as (connection, _):  # raises UserError if it is not a database of ours
            name, on_server = place(connection.engine.url), sqlite_path(connection.engine.url) is None
            if not on_server:
                connection.connection.cursor().execute("VACUUM INTO ?", (str(partial),))
        if on_server:
            _copy_rows(url, partial)
        _require_sound(partial, name)


@contextmanager
def new_file(target: Path, what: str) -> Iterator[Path]:
    """A file to write that gets its name when it is complete. what: is written.

    Raises UserError if there is a file of this name, or it cannot be written.
    """
    if target.exists():
        raise UserError(f"{target} already exists.", f"{what} replaces nothing: name a new file.")
    if not target.absolute().parent.is_dir():
        raise UserError(f"No folder {target.absolute().parent} for {target.name}.", "Make it first.")
    try:
        with files.atomic_path(target) as partial:
            yield partial
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}.", "Name a file in a writable folder.") from None


def _copy_rows(url: str, partial: Path) -> None:
    source, copied = connect_read_only(url), connect(to_url(str(partial)))
    try:
        copy.copy(source, copied)
    finally:
        source.dispose()
        copied.dispose()


def _require_sound(partial: Path, name: str) -> None:
    with closing(sqlite3.connect(partial)) as connection:
        connection.execute("PRAGMA ignore_check_constraints=ON")  # rows that break a check are no damage
        if (found := connection.execute("PRAGMA quick_check").fetchone()[0]) != "ok":
            raise UserError(f"{name} is damaged, and so is a copy of it: {found}", RECOVER)
