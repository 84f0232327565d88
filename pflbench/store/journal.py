"""How SQLite keeps a commit whole: by a write-ahead log beside the file, or by a rollback journal.

The log lets readers go on beside a writer. Its index is memory that all processes share, which no network file system gives
them: there two machines would each have an index of their own and damage the file. A rollback journal needs file locks alone.
"""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path

from sqlalchemy import Engine

from pflbench.store.failures import BUSY_SECONDS

WAL = "wal"
_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "fhgfs", "glusterfs", "ocfs2"),
    *("gfs2", "pvfs2", "orangefs", "coda", "ncpfs", "davfs", "acfs", "panfs", "wekafs", "vboxsf", "prl_fs", "fuse.sshfs"),
    *("fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs", "fuse.smbnetfs", "fuse.juicefs", "fuse.beegfs"),
}


def network(path: Path, mounts: str | None = None) -> str | None:
    """The kind of network file system that a file lies on, "nfs4" say; None for another one, or where nobody tells.

    mounts: as Linux lists them in /proc/self/mountinfo; by default what is there.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    where, found, longest = path.resolve(), None, -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4]))  # a blank in it is \040
        # Of two at the same place the later one is on top.
        if where.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = kind, len(point.parts)
    return found if found in _NETWORK else None


def of(engine: Engine) -> str:
    """The journal of a database: "wal", or "delete" for a rollback journal."""
    with engine.connect() as connection:
        return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())


def prepare(connection: sqlite3.Connection) -> None:
    """How much a commit waits for the disk: less is safe with a write-ahead log alone."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    connection.execute(f"PRAGMA synchronous={'NORMAL' if mode == WAL else 'FULL'}")


def begin(connection: sqlite3.Connection, path: Path | None) -> None:
    """Gives a new database the journal that is safe where it lies. One that has tables stays as it is."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return None
    mode = "delete" if path is not None and network(path) else WAL
    until = time.monotonic() + BUSY_SECONDS
    while True:  # SQLite does not always wait here for another process's lock
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            return prepare(connection)
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
