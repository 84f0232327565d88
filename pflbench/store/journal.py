"""Chooses between SQLite's two ways of an atomic commit: a write-ahead log, or a rollback journal.

With the log, readers do not wait for a writer. Its index is shared memory, which network file systems do not have: two machines
would each have their own index and damage the file. A rollback journal only needs file locks.
"""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

from sqlalchemy import Engine

from pflbench.store.failures import BUSY_SECONDS, sqlite_path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "fhgfs", "glusterfs", "ocfs2"),
    *("gfs2", "pvfs2", "orangefs", "coda", "ncpfs", "davfs", "acfs", "panfs", "wekafs", "vboxsf", "prl_fs", "fuse.sshfs"),
    *("fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs", "fuse.smbnetfs", "fuse.juicefs", "fuse.beegfs"),
}


def network(path: Path) -> str | None:
    """The network file system of a file, e.g. "nfs4"; None for a local file system, and if it is unknown."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # not Linux
        return None
    target, found, longest = path.resolve(), "", 0
    for line in mounts.splitlines():
        _, folder, kind, *_ = line.split(" ")
        point = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), folder))  # \040 is a blank
        # If two are mounted at the same place, the later one is visible.
        if target.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind, len(point.parts)
    return found if found in _NETWORK else None


def at_risk(engine: Engine) -> str | None:
    """The network file system on which a database has a write-ahead log nevertheless; None if it is safe where it is."""
    path = sqlite_path(engine.url)
    where = network(path) if path else None
    if where is None:
        return None
    with engine.connect() as connection:
        return where if connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal" else None


def prepare(connection: sqlite3.Connection) -> None:
    """Sets how long a commit waits for the disk: NORMAL is safe only with a write-ahead log."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    connection.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")


def begin(connection: sqlite3.Connection, path: Path | None) -> None:
    """Sets the journal of a new database, by its file system. A database with tables keeps its journal."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return
    mode = "delete" if path is not None and network(path) else "wal"
    until = time.monotonic() + BUSY_SECONDS
    while True:  # for this statement SQLite does not always wait for another process's lock
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
    prepare(connection)
