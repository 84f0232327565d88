"""Locks of runs on PostgreSQL: a session advisory lock for each run, on a connection of its own.

The server frees it when that connection ends: at once with its process, after a minute if the machine is gone. A pooler
must use session pooling.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, text
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


@contextmanager
def claimed(engine: Engine, key: str) -> Iterator[Callable[[], None]]:
    """Locks the runs of a key for this process. Raises Occupied.

    Yields a function that takes the lock again if it was lost with its connection; it raises Occupied and Unreachable.
    """
    number = int.from_bytes(bytes.fromhex(key), signed=True)
    mine: Connection | None = None

    def take() -> None:
        nonlocal mine
        if mine is not None and _is_alive(mine):
            return
        with friendly(engine.url):
            connection = _connect(engine)
            if not connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": number}):
                connection.close()
                raise Occupied(
                    f"Another process is training this run: {held(engine).get(key, 'it has just ended')}.",
                    "Wait for it, or stop it first. One whose machine is gone is released after a minute.",
                )
            mine = connection

    patiently(take)
    try:
        yield take
    finally:
        assert mine is not None
        with suppress(SQLAlchemyError):  # if the connection is lost, so is the lock
            mine.exec_driver_sql("SELECT pg_advisory_unlock_all()")  # the server takes a moment to see that it is closed
        mine.close()


def held(engine: Engine) -> dict[str, str]:
    """The keys of the locked runs, and by which process each is locked."""
    with reading(engine) as c:
        return {row[0]: row[1] for row in c.execute(text(_HELD))}


def _connect(engine: Engine) -> Connection:
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    connection.detach()  # closing it ends its session, and the pool gives it to nobody else
    connection.execute(text(_SETTINGS), {"who": f"{platform.node()[:40]}, process {os.getpid()}"})
    return connection


def _is_alive(connection: Connection) -> bool:
    try:
        connection.exec_driver_sql("SELECT 1")
    except SQLAlchemyError:
        connection.close()
        return False
    return True
