"""The golden database (tests/golden), for tests that read alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden.raw import Raw, unpack
from sqlalchemy import Engine

from pflbench.store import database as db


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Connecting upgrades an older database, as it does for every command."""
    return db.connect(db.to_url(str(unpack(tmp_path_factory.mktemp("golden") / "golden.db"))))


@pytest.fixture(scope="session")
def raw(golden: Engine) -> Raw:
    return Raw.read(Path(str(golden.url.database)))
