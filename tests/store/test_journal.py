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

MOUNTS = r"""/dev/sda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sda2 /home/me/local\040disk xfs rw 0 0
me@host:/ /mnt/data fuse.sshfs rw,relatime 0 0
server:/twice /mnt/twice nfs4 rw 0 0
tmpfs /mnt/twice tmpfs rw 0 0
mds:/fs /scratch lustre rw 0 0
odd /odd notafs rw 0 0
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
def test_network_file_systems_are_known_by_the_table_of_mounts(
    place: str, kind: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_MOUNTS", tmp_path / "mounts")
    assert journal.network(Path(place)) is None, "there is no such table"
    (tmp_path / "mounts").write_text(MOUNTS)
    assert journal.network(Path(place)) == kind


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a network file system, as the table of mounts has it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    table = tmp_path / "mounts"
    table.write_text(f"/dev/sda1 / ext4 rw 0 0\nserver:/home {folder} nfs4 rw 0 0\n")
    monkeypatch.setattr(journal, "_MOUNTS", table)
    return folder


PRAGMAS = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")


def settings(url: str) -> tuple[object, ...]:
    engine = db.connect(url)
    with engine.connect() as connection:
        found = tuple(connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS)
    engine.dispose()
    return found


def test_a_new_database_is_safe_where_it_lies(shared: Path, tmp_path: Path) -> None:
    for _ in range(2):  # made, and opened again
        assert settings(db.to_url(str(shared / "results.db"))) == ("delete", 2, 1, 30_000)
        assert settings(db.to_url(str(tmp_path / "results.db"))) == ("wal", 1, 1, 30_000)


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
    assert settings(db.to_url(str(path)))[:2] == ("delete", 2)
    assert "network" not in shell("runs", "list", "--db", str(path)).err
