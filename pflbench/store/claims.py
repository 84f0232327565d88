"""Who is at a run, where machines share the database: advisory locks of PostgreSQL, on a connection for nothing else.

The server frees them when that connection ends: at once with its process, after a minute with a machine that is gone. A pooler
between the two must leave a connection to its session.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from pflbench.errors import Occupied
from pflbench.store.database import reading
from pflbench.store.failures import friendly, patiently

# How the server finds out that a machine is gone; and the connection is meant to be idle. Older servers lack some of them.
_SETTINGS = """
    SELECT set_config(name, wanted, false) FROM pg_settings JOIN (VALUES
        ('tcp_keepalives_idle', '30'), ('tcp_keepalives_interval', '10'), ('tcp_keepalives_count', '3'),
        ('idle_session_timeout', '0'), ('application_name', :who)) AS own (name, wanted) USING (name)
"""
_HELD = """
    SELECT lpad(to_hex(classid::bigint << 32 | objid::bigint), 16, '0'), application_name
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class _Session:
    """A connection to the server, and the keys whose locks it has."""

    def __init__(self, engine: Engine) -> None:
        self.keys: set[str] = set()
        self._engine, self._connection = engine, engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()  # closing it ends its session, and no other use of the pool gets it
        self._connection.execute(text(_SETTINGS), {"who": f"{platform.node()[:40]}, process {os.getpid()}"})

    def answers(self) -> bool:
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except SQLAlchemyError:
            self._connection.close()
            return False
        return True

    def take(self, key: str) -> None:
        """Raises Occupied."""
        if key in self.keys or not self._locks("pg_try_advisory_lock", key):
            self._end_if_unused()
            raise Occupied(
                f"Another process is at this run already: {held(self._engine).get(key, 'it has just ended')}.",
                "Wait for it, or stop it first. One whose machine is gone is let go after a minute.",
            )
        self.keys.add(key)

    def give_back(self, key: str) -> None:
        self.keys.remove(key)
        with suppress(SQLAlchemyError):  # where the connection is lost, so is the lock
            self._locks("pg_advisory_unlock", key)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self.keys:
            with suppress(SQLAlchemyError):
                self._connection.close()

    def _locks(self, function: str, key: str) -> bool:
        number = int.from_bytes(bytes.fromhex(key), signed=True)
        return bool(self._connection.scalar(text(f"SELECT {function}(:number)"), {"number": number}))


_sessions: WeakKeyDictionary[Engine, _Session] = WeakKeyDictionary()  # one for all runs that an engine makes


@contextmanager
def claimed(engine: Engine, key: str) -> Iterator[Callable[[], None]]:
    """Keeps other processes from the runs of a key, for as long as this one lives. Raises Occupied.

    Gives a function that takes the lock anew if it was lost with its connection; it raises Occupied and Unreachable.
    """
    mine: _Session | None = None

    def take() -> None:
        nonlocal mine
        with friendly(engine.url):
            if (session := _session(engine)) is not mine:
                session.take(key)
                mine = session

    patiently(take)
    try:
        yield take
    finally:
        assert mine is not None
        mine.give_back(key)


def held(engine: Engine) -> dict[str, str]:
    """The keys at whose runs a process is, and which one."""
    with reading(engine) as c:
        return {row[0]: row[1] for row in c.execute(text(_HELD))}


def _session(engine: Engine) -> _Session:
    found = _sessions.get(engine)
    if found is None or not found.keys or not found.answers():
        found = _sessions[engine] = _Session(engine)
    return found
