"""A password in a URL is shown nowhere, whatever command the URL was given to, and stored nowhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import Shell
from typer.main import get_command

from pflbench.cli import app
from pflbench.store import database as db
from pflbench.store import runs, write

SECRET = "s3cret"
URL = f"postgresql://me:{SECRET}@127.0.0.1:1/pfl?sslpassword={SECRET}"


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All that do something, by the words that call them."""
    for name, one in getattr(command, "commands", {}).items():
        yield from commands(one, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def calls() -> Iterator[tuple[str, ...]]:
    """Each command with the URL for its arguments, for its database, and for the file that it writes."""
    for path, command in commands(get_command(app)):
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        if arguments:
            yield (*path, *(URL for _ in arguments))
        for option in {"--db", "--output"} & {name for one in command.params for name in one.opts}:
            yield (*path, *(URL for one in arguments if one.required), option, URL)


def test_no_command_shows_a_password(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFLBENCH_DB_WAIT", "0")
    asked = list(calls())
    assert len(asked) > 55
    for call in asked:
        done = shell(*call)
        assert SECRET not in done.out + done.err, call


def test_json_and_what_is_stored_have_no_password(shell: Shell, tmp_path: Path) -> None:
    told = shell("import", URL, "--json", "--db", "r.db")
    assert (told.code, SECRET in told.out, "postgresql:/me:***@127.0.0.1" in told.out) == (2, False, True)
    assert shell("run", "-m", "fedavg", "-d", "digits", "-r", "1", "-q", "--db", "r.db").code == 0
    engine = db.connect(db.to_url("r.db"))
    write.update_run(engine, 1, message=f"cannot reach {URL}")
    assert runs.find(engine, 1).message == "cannot reach postgresql://me:***@127.0.0.1:1/pfl?sslpassword=***"
    engine.dispose()
    with sqlite3.connect("r.db") as connection:
        assert SECRET not in "".join(connection.iterdump())


def test_an_at_sign_in_a_password_is_said(shell: Shell) -> None:
    """Else a part of the password is taken for the host, which errors name."""
    told = shell.refused("runs", "list", "--db", "postgresql://me:s3@cret@127.0.0.1:1/pfl")
    assert "%40" in told
    assert "cret" not in told
