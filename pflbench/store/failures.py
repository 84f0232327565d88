"""Turns database errors that the user can mend into UserErrors that say how; waits for a server that is away."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from pflbench.errors import Unreachable, UserError
from pflbench.plain import without_passwords

_log = logging.getLogger(__name__)  # to stderr, also in a worker's process: the user should know what is waited for

T = TypeVar("T")
BUSY_SECONDS = 30
ELSEWHERE = "--db or PFLBENCH_DB names another database."
DAMAGED = "`pflbench db check` names what is damaged; `pflbench runs rm` removes a run."
RECOVER = "SQLite's own program saves what can be read: sqlite3 FILE .recover | sqlite3 NEW"


def from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UserError("A row of the database is damaged: it should contain JSON, and does not.", DAMAGED) from None


@contextmanager
def friendly(url: str | URL) -> Iterator[None]:
    """Turns failures that the user can mend (disk full, read-only, locked, malformed, ...) into UserErrors.

    Errors of the program (a wrong column, a violated constraint) pass unchanged.
    """
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        explained = _explain(make_url(url), error)
        if explained is None:
            raise
        raise explained from error


def patience() -> float:
    """Seconds to wait for a server that does not answer: PFLBENCH_DB_WAIT, else ten minutes."""
    text = os.environ.get("PFLBENCH_DB_WAIT") or "600"
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise UserError(f"PFLBENCH_DB_WAIT={text} is no number of seconds.", "For example PFLBENCH_DB_WAIT=600.")
    return float(text)


def patiently(work: Callable[[], T]) -> T:
    """Calls `work`, and retries it while the server cannot be reached, up to `patience()` seconds. `work` must be idempotent."""
    seconds, pause, warned = patience(), 0.5, False
    until = time.monotonic() + seconds
    while True:
        try:
            return work()
        except Unreachable as error:
            if time.monotonic() + pause > until:
                message = f"{error.message} Waited {seconds:.0f} seconds for it (PFLBENCH_DB_WAIT)."
                raise Unreachable(message, f"{_KEPT} Run the same command again when the server is back.") from error
            if not warned:
                _log.warning("%s Waiting up to %.0f seconds for it (PFLBENCH_DB_WAIT).", error.message, seconds)
                warned = True
        time.sleep(pause)
        pause = min(2 * pause, 15.0)


def sqlite_path(url: URL) -> Path | None:
    """The file of an SQLite database, None for one in memory or of another kind."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:" or "uri" in url.query:
        return None
    return Path(url.database)


def place(url: URL) -> str:
    """The database as messages name it: its path, or its URL without passwords."""
    return str(sqlite_path(url) or without_passwords(url.set(drivername=url.get_backend_name()).render_as_string(), alone=True))


def _explain(url: URL, error: Exception) -> UserError | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if "unsupported file format" in str(cause):  # a damaged header, which SQLite gives no code of its own
            code = sqlite3.SQLITE_CORRUPT
        known = _SQLITE_ERRORS.get(code)
        return UserError(known[0].format(place(url)), known[1]) if known else None
    state = getattr(cause, "sqlstate", None)
    if not isinstance(error, (OperationalError, InterfaceError)) and state not in (_READ_ONLY, *_TOO_LONG, _NO_PRIVILEGE):
        return None
    lines = str(cause).strip().splitlines() or [""]
    first = without_passwords(lines[0]).rpartition(" failed: ")[2].removeprefix("FATAL:").strip()
    kind, sentence, hint = next(row[1:] for row in _SERVER_ERRORS if re.search(row[0], f"{state} {first}"))
    return kind(f"{place(url)}{sentence.format(first)}.", hint.format(url.database))


_READ_ONLY = "25006"
_TOO_LONG = ("25P03", "25P04")  # a transaction that lasted, or was idle, for too long
_NO_PRIVILEGE = "42501"
_KEPT = "Every round committed before is kept."
# Regular expressions for SQLSTATE (None: the driver did not reach the server) and the error's first line; the first that fits.
_SERVER_ERRORS: tuple[tuple[str, type[UserError], str, str], ...] = (
    ("database .*does not exist", UserError, ": there is no such database", f"Make it first: createdb {{}}. {ELSEWHERE}"),
    (f"^{_NO_PRIVILEGE}", UserError, ": {}", "Ask the server's owner for the right to it."),
    (r"authentication failed|no password supplied|pg_hba\.conf|role ", UserError, ": {}", ELSEWHERE),
    # Classes of SQLSTATE: connection, resources, a server that was stopped.
    ("^(None|08|53|57|25P0)", Unreachable, " cannot be reached: {}", f"Is the server running? {ELSEWHERE}"),
    ("", UserError, ": {}", ELSEWHERE),
)
_PERMIT = "Change the permissions, or copy the file to a folder of your own. " + ELSEWHERE
_SQLITE_ERRORS = {
    sqlite3.SQLITE_FULL: (
        "The disk is full: cannot write to {}.",
        f"{_KEPT} Free some space and run the same command again.",
    ),
    sqlite3.SQLITE_IOERR: (
        "Reading or writing {} failed (disk error, quota or file size limit).",
        f"{_KEPT} Look at the disk, then run the same command again.",
    ),
    sqlite3.SQLITE_BUSY: (
        f"{{}} has been locked by another process for {BUSY_SECONDS} seconds.",
        f"{_KEPT} End the other process (a database browser?) and run the same command again.",
    ),
    sqlite3.SQLITE_READONLY: ("{} is read-only: cannot write to it or to its folder.", _PERMIT),
    sqlite3.SQLITE_CANTOPEN: ("Cannot open {}: the file cannot be read, or its folder not be written to.", _PERMIT),
    sqlite3.SQLITE_CORRUPT: ("{} is damaged.", f"`pflbench db check` lists the problems. {RECOVER}"),
    sqlite3.SQLITE_NOTADB: ("{} is not a SQLite database.", f"It was left as it is. {ELSEWHERE}"),
}
