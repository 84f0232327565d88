"""Commands in processes of their own that are killed, signalled or left without disk; and what they leave in their folder."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from pflbench import cli

# A process that has imported everything once forks one for each command: a try takes half a second.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "sklearn", "sympy", "alembic.command", "alembic.autogenerate", "pflbench.run.pack",
                               "pflbench.cli", "pflbench.cli.run", "pflbench.store.exchange.merge"])  # fmt: skip
# What differs between two commands that do the same: times, memory, numbers in order, how a run was made.
_VARIES = {"id", "created_at", "started_at", "finished_at", "environment", "peak_memory"}
_BY_KEY = {
    "run_id": "(SELECT key || '/' || attempt FROM run WHERE run.id = run_id)",
    "partition_id": "(SELECT hash FROM partition WHERE partition.id = partition_id)",
}
Disturb = Callable[[], None]


class Command:
    """A command under way in a folder. Its events, SQL statements and changes of files, are written into `log`, a line each."""

    def __init__(self, folder: Path, *arguments: str, disturb: Disturb | None = None, kill_at: int | None = None) -> None:
        """disturb: done in the process before the command. kill_at: SIGKILL just before the event of this number, from 0."""
        self.log, self._err = (folder.with_name(f"{folder.name}.{suffix}") for suffix in ("log", "err"))
        self.log.write_text("")
        at = str(folder), str(self.log), str(self._err)
        self.process = _FORKS.Process(target=_command, args=(arguments, *at, disturb, kill_at))
        self.process.start()

    def events(self) -> list[str]:
        return self.log.read_text().splitlines()

    def signal_at(self, at: int, *numbers: int) -> None:
        """Signals when the command has come to the event of this number."""
        while len(self.events()) <= at and self.process.is_alive():
            time.sleep(0.001)
        for number in numbers:
            if self.process.is_alive():
                os.kill(self.process.pid or 0, number)

    def wait(self) -> tuple[int | None, str]:
        """Its exit code, negative for the signal that killed it, and stderr."""
        self.process.join(90)
        self.process.kill()
        self.process.join()
        return self.process.exitcode, self._err.read_text()


def _command(arguments: tuple[str, ...], folder: str, log: str, err: str, disturb: Disturb | None, kill_at: int | None) -> None:
    os.chdir(folder)
    for path, number in ((os.devnull, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have them ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    _listen(os.open(log, os.O_WRONLY | os.O_APPEND), kill_at)
    if disturb:
        disturb()
    sys.exit(cli.main(arguments))


def _listen(log: int, kill_at: int | None) -> None:
    heard = 0

    def hear(name: str) -> None:
        nonlocal heard
        if heard == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        heard += 1
        os.write(log, f"{name}\n".encode())

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or name in ("os.rename", "os.remove", "os.mkdir"):
            hear(name)

    _at_connect(lambda connection: connection.set_trace_callback(lambda said: hear(" ".join(said.split()[:3]))))
    sys.addaudithook(audit)


def _at_connect(do: Callable[[sqlite3.Connection], Any]) -> None:
    event.listen(Engine, "connect", lambda connection, _: do(connection))


def _few_pages(pages: int) -> None:
    _at_connect(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}"))


def full_database(pages: int) -> Disturb:
    """SQLite finds the disk full when the database has so many pages."""
    return partial(_few_pages, pages)


def small_files(size: int) -> Disturb:
    """No file may become longer than `size` bytes, as under `ulimit -f`."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))


def left(folder: Path) -> dict[str, Any]:
    """Its files by name; of a database all rows but for what varies. Read in a copy: opening the file would mend it."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.suffix == ".db":
            found[path.name] = _rows(path)
        elif path.is_file() and not path.name.endswith(("-wal", "-shm")):
            found[path.name] = path.name
    return found


def _rows(database: Path) -> Counter[Any]:
    with tempfile.TemporaryDirectory() as copy:
        for path in database.parent.glob(f"{database.name}*"):
            if path.name == database.name or path.name.endswith("-wal"):
                shutil.copy(path, copy)
        with closing(sqlite3.connect(Path(copy) / database.name)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            return Counter(row for (table,) in tables.fetchall() for row in _of_table(connection, table))


def _of_table(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    every = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    names = [_BY_KEY.get(name, f'"{name}"') for name in every if name not in _VARIES and not name.startswith("seconds")]
    return [(table, *row) for row in connection.execute(f'SELECT {", ".join(names) or 1} FROM "{table}"')]
