"""What tests of several files begin with."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from sqlalchemy import Engine
from support import postgres
from support.command import Shell
from support.postgres import Server

from pflbench.store import database as db

pytest.register_assert_rewrite("pflbench.contract.suite")


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """A process makes one call. Tests make many, and Typer would read all commands anew at each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_kept_in_the_users_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for what in ("STATE", "CACHE"):
            patch.setenv(f"XDG_{what}_HOME", str(tmp_path_factory.mktemp(what)))
        yield


def pytest_collection_finish() -> None:
    """What is imported and collected stays: garbage collections, which runs ask for as well, need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command line in an empty folder, with none of its settings in the environment."""
    for name in os.environ:
        if name.startswith("PFLBENCH_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PFLBENCH_DOWNLOAD", "0")
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}-state")  # what is known of a GPU here is not the tests'
    monkeypatch.chdir(tmp_path)
    return Shell(capsys)


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that nothing was written to: to be copied, which takes less time than to make another."""
    path = tmp_path_factory.mktemp("new") / "results.db"
    db.connect(db.to_url(str(path))).dispose()
    return path


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server for all tests of this process, started for the first that needs it."""
    with postgres.server() as found:
        yield found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the mark `servers` is made with an SQLite file as `store`, and with a database on PostgreSQL."""
    asked = metafunc.definition.get_closest_marker("servers")
    if asked is not None and asked.args != ("never",) and "store" in metafunc.fixturenames:
        marks = () if asked.args == ("fast",) else (pytest.mark.slow,)
        metafunc.parametrize("store", ["sqlite", pytest.param("postgresql", marks=marks)], indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A new database."""
    if getattr(request, "param", "sqlite") == "sqlite":
        path = shutil.copy(request.getfixturevalue("new_database"), tmp_path / "results.db")
        yield db.connect(db.to_url(str(path)))
        return
    server: Server = request.getfixturevalue("server")
    url = server.new()
    engine = db.connect(url)
    yield engine
    engine.dispose()
    server.drop(url)


@pytest.fixture
def engine(store: Engine) -> Engine:
    """The same, where a test calls it so."""
    return store
