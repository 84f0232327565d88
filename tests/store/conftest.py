"""A pflbench with one more migration; a database with a damaged page."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pflbench.store import database as db

# What a later migration may do: add a column with a value for old rows, and alter one, for which SQLite copies the table.
FUTURE = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9999", "{previous}"


def upgrade() -> None:
    with op.batch_alter_table("run", table_kwargs={{"sqlite_autoincrement": True}}) as table:
        table.add_column(sa.Column("energy", sa.Integer(), nullable=False, server_default="7"))
        table.alter_column("message", type_=sa.Text())
        table.drop_constraint("uq_run_key_attempt")
    {then}
"""


@pytest.fixture
def add_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Gives this pflbench one more migration."""

    def add(then: str = "") -> Path:
        previous = db.head()
        folder = tmp_path / "more migrations, 100 %"
        shutil.copytree(db.scripts(), folder)
        (folder / "versions" / "9999_future.py").write_text(FUTURE.format(previous=previous, then=then))
        monkeypatch.setattr(db, "scripts", lambda: folder)
        db.revisions.cache_clear()
        return folder

    yield add
    monkeypatch.undo()
    db.revisions.cache_clear()


@pytest.fixture
def damage() -> Callable[[Path], None]:
    """Noise in place of the page where the table of clients' results begins. Nobody may have the database open."""

    def damaged(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'client_round'").fetchone()
        with path.open("r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xee" * size)

    return damaged
