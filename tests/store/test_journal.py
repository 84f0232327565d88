"""Which journal a database has: the safe one on network file systems, told from the table of mounts."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.command import Shell

from pflbench.store import database as db
from pflbench.store import journal

MOUNTS = r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/me/local\040disk rw - xfs /dev/sdb rw
32 21 0:41 / /mnt/data rw,relatime shared:2 master:3 - fuse.sshfs me@host:/ rw
33 21 0:42 / /mnt/twice rw - nfs4 server:/twice rw
34 21 0:43 / /mnt/twice rw - tmpfs tmpfs rw
35 21 0:44 / /scratch rw - lustre mds:/fs rw
36 21 0:45 / /odd rw - notafs odd rw
a broken line
"""
PLACES = {
    "/results.db": None,
    "/home/me/results.db": "nfs4",
    "/homes/results.db": None,
    "/home/me/local disk/results.db": None,
    "/home/me/local disks/results.db": "nfs4",
    "/mnt/data/deep/er/results.db": "fuse.sshfs",
    "/mnt/twice/results.db": None,
    "/scratch/results.db": "lustre",
    "/odd/results.db": None,
}


@pytest.mark.parametrize(("place", "kind"), PLACES.items())
def test_network_file_systems_are_known_by_the_table_of_mounts(place: str, kind: str | None) -> None:
    assert journal.network(Path(place), MOUNTS) == kind


def test_nothing_is_said_where_there_is_no_such_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MOUNTS", tmp_path / "none")
    assert journal.network(tmp_path / "results.db") is None


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a network file system, as the table of mounts has it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    table = tmp_path / "mountinfo"
    table.write_text(f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:40 / {folder} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr(journal, "_MOUNTS", table)
    return folder


def settings(url: str) -> tuple[object, ...]:
    engine = db.connect(url)
    with engine.connect() as connection:
        found = tuple(connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous"))
    engine.dispose()
    return found


def test_a_new_database_is_safe_where_it_lies(shared: Path, tmp_path: Path) -> None:
    for _ in range(2):  # made, and opened again
        assert settings(db.to_url(str(shared / "results.db"))) == ("delete", 2)
        assert settings(db.to_url(str(tmp_path / "results.db"))) == ("wal", 1)


def test_an_older_one_is_warned_of_until_its_journal_is_changed(shared: Path, shell: Shell) -> None:
    path = shared / "results.db"
    db.connect(db.to_url(str(path))).dispose()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    told = shell("runs", "list", "--db", str(path)).err
    assert "network file system (nfs4)" in told
    (change,) = re.findall(r"sqlite3 \S+ '(.*)'", told)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
    assert settings(db.to_url(str(path))) == ("delete", 2)
    assert "network" not in shell("runs", "list", "--db", str(path)).err
