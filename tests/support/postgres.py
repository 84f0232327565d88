"""A PostgreSQL server of the tests' own: on 127.0.0.1, as an ordinary user, with its files in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from pflbench.store import database as db

USER, PASSWORD = "me", "s3cret"
SETTINGS = {"fsync": "off", "max_connections": "200", "shared_buffers": "32MB"}
MISSING = "no PostgreSQL server here: apt-get install postgresql"
_numbers = count()


class Server:
    """One that can be stopped and started again in the middle of things; databases are made in it."""

    def __init__(self, programs: Path, folder: Path, **settings: str) -> None:
        self._programs, self._folder, self._data = programs, folder, folder / "data"
        self.port = _free_port()
        if os.getuid() == 0:
            shutil.chown(folder, _ordinary_user())
        password = folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        made = ("-U", USER, "--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        self._run("initdb", "-D", self._data, *made)
        options = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": folder, **SETTINGS, **settings}
        self._options = " ".join(f"-c {name}={value}" for name, value in options.items())

    def start(self) -> None:
        self._run("pg_ctl", "start", "-w", "-D", self._data, "-l", self._folder / "log", "-o", self._options)

    def stop(self, mode: str = "fast") -> None:
        """fast: connections are broken off. immediate: as if it were killed."""
        self._run("pg_ctl", "stop", "-w", "-D", self._data, "-m", mode)

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def new(self, *, filled: bool = True) -> str:
        """The URL of a new database: with our tables, or empty."""
        name = f"test{next(_numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {self._template() if filled else 'template0'}")
        return self.url(name)

    def drop(self, url: str) -> None:
        self.sql(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)")

    def sql(self, statement: str) -> None:
        engine = db.open_engine(self.url("postgres"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    @cache  # noqa: B019 (there is one server)
    def _template(self) -> str:
        """A database that nothing was written to: to be copied, which takes less time than to make another."""
        self.sql("CREATE DATABASE pflbench_new TEMPLATE template0")
        db.connect(self.url("pflbench_new")).dispose()
        return "pflbench_new"

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        if os.getuid() == 0:  # PostgreSQL refuses to be run by root
            command = ["runuser", "-u", _ordinary_user(), "--", *command]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", timeout=60)
        if done.returncode:
            log = self._folder / "log"
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")


@contextmanager
def server(**settings: str) -> Iterator[Server]:
    """Skips the test, with a reason, where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="pflbench-postgres-"))
    folder.chmod(0o755)
    try:
        found = Server(programs, folder, **settings)
        found.start()
        try:
            yield found
        finally:
            found.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """Where Debian has them, the newest version; else where the PATH has them."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[4]))
    found = str(versions[-1]) if versions else shutil.which("pg_ctl")
    return Path(found).resolve().parent if found else None


@cache
def _ordinary_user() -> str:
    return "postgres" if subprocess.run(["id", "postgres"], capture_output=True).returncode == 0 else "nobody"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
