"""Locks of runs on PostgreSQL: session advisory locks on a connection of their own.

The server frees them when that connection ends: at once with its process, after a minute if the machine is gone. A pooler
must use session pooling.
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

# Keepalives, by which the server notices that a machine is gone; no timeout, as the connection is idle. Older servers lack some.
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
    """A connection to the server, and the keys of the runs that it has locked."""

    def __init__(self, engine: Engine) -> None:
        self.keys: set[str] = set()
        self._engine, self._connection = engine, engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()  # closing it ends its session, and the pool gives it to nobody else
        self._connection.execute(text(_SETTINGS), {"who": f"{platform.node()[:40]}, process {os.getpid()}"})

    def is_alive(self) -> bool:
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
                f"Another process is training this run: {held(self._engine).get(key, 'it has just ended')}.",
                "Wait for it, or stop it first. One whose machine is gone is released after a minute.",
            )
        self.keys.add(key)

    def release(self, key: str) -> None:
        self.keys.remove(key)
        with suppress(SQLAlchemyError):  # if the connection is lost, so is the lock
            self._locks("pg_advisory_unlock", key)
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self.keys:
            with suppress(SQLAlchemyError):
                self._connection.close()

    def _locks(self, function: str, key: str) -> bool:
        number = int.from_bytes(bytes.fromhex(key), signed=True)
        return bool(self._connection.scalar(text(f"SELECT {function}(:number)"), {"number": number}))


_sessions: WeakKeyDictionary[Engine, _Session] = WeakKeyDictionary()  # one for all runs of an engine


@contextmanager
def claimed(engine: Engine, key: str) -> Iterator[Callable[[], None]]:
    """Locks the runs of a key for this process. Raises Occupied.

    Yields a function that takes the lock again if it was lost with its connection; it raises Occupied and Unreachable.
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
        mine.release(key)


def held(engine: Engine) -> dict[str, str]:
    """The keys of the locked runs, and by which process each is locked."""
    with reading(engine) as c:
        return {row[0]: row[1] for row in c.execute(text(_HELD))}


def _session(engine: Engine) -> _Session:
    found = _sessions.get(engine)
    if found is None or not found.keys or not found.is_alive():
        found = _sessions[engine] = _Session(engine)
    return found
