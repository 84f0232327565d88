"""A pflbench with one more migration."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
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
