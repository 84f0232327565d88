"""What is done to a process before its command begins. Each is a function of its own; `server` calls them by name."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from support.faults import witness

from pflbench._torchvision import torchvision

Heard = Callable[[str], None]

_FILES = {
    "os.rename": 0,
    "os.remove": 0,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "os.truncate": 0,
    "os.link": 0,
    "os.symlink": 0,
    "os.chmod": 0,
    "shutil.rmtree": 0,
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def counted(kinds: list[str], into: str) -> None:
    """Writes down every event of these kinds, a line each."""
    log = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _listen(kinds, lambda name: os.write(log, f"{name}\n".encode()))


def killed(kinds: list[str], at: int) -> None:
    """SIGKILL just before event `at`, counted from 0."""
    left = at

    def heard(_: str) -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    _listen(kinds, heard)


def witnessed(into: str) -> None:
    """Writes down at each commit to an SQLite file what is in it: before, what will be, and after it that it is."""
    witness.testify(into)


def clock(ahead: float, back: float = 0.0, every: int = 0) -> None:
    """The wall clock is `ahead` seconds ahead; at each `every`-th look it is set back by `back` seconds more."""
    import datetime
    import time

    true, looks, shift = time.time, 0, ahead

    def shifted() -> float:
        nonlocal looks, shift
        looks += 1
        if every and looks % every == 0:
            shift -= back
        return true() + shift

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(shifted(), tz)

    time.time = shifted
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("pflbench") and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = Shifted  # type: ignore[attr-defined]


def impatient(seconds: float) -> None:
    """A lock of another process is waited for so long."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("pflbench") and hasattr(module, "BUSY_SECONDS"):
            module.BUSY_SECONDS = seconds  # type: ignore[attr-defined]


def full_after(pages: int) -> None:
    """SQLite finds the disk full when the database has so many pages."""
    _at_connect(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}"))


def small_files(size: int) -> None:
    """No file may become longer than `size` bytes, as under `ulimit -f`. Python ignores SIGXFSZ: writing fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def little_memory(more: int) -> None:
    """The process may have `more` bytes beyond what it has now, as under `ulimit -v`."""
    with open("/proc/self/statm") as found:
        now = int(found.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, now + more))


def patched(module: str, **values: Any) -> None:
    """Sets names of a module, such as the address of a server; `CLASS__name`: of a class in it."""
    if module.startswith("torchvision"):
        torchvision()
    for name, value in values.items():
        owner, *inner = name.split("__")
        found = sys.modules.get(module) or __import__(module, fromlist=["_"])
        setattr(getattr(found, owner) if inner else found, inner[0] if inner else owner, value)


def _listen(kinds: list[str], heard: Heard) -> None:
    if "file" in kinds:
        _hear_files(heard)
    if "sql" in kinds:
        _hearers.append(heard)
        _at_connect(lambda connection: connection.set_trace_callback(_traced))


_hearers: list[Heard] = []  # a connection has one callback


def _traced(statement: str) -> None:
    for heard in _hearers if not witness.asking else ():
        heard(" ".join(statement.split()[:3]))


def _hear_files(heard: Heard) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILES:
            heard(event)
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES and arguments[0] != os.devnull:
            heard("open")

    true = os.fsync

    def fsync(handle: int) -> None:
        heard("fsync")
        true(handle)
        heard("fsynced")

    os.fsync = fsync
    sys.addaudithook(hook)


def _at_connect(do: Callable[[sqlite3.Connection], Any]) -> None:
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", lambda connection, _: do(connection) if isinstance(connection, sqlite3.Connection) else None)
