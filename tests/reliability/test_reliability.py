"""What was committed stays, and the same command again ends as if nothing had disturbed the first: docs/reliability.md.

`PFLBENCH_TRIES=200 pytest -m "" tests/reliability` tries each fault at 200 places (`make reliability`); else at a few.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.cases import rest_slow
from support.command import ROOT
from support.faults import Command, Disturb, full_database, left, small_files

SMALL = ("-d", "digits", "--clients", "3", "--rounds", "3", "--batch-size", "100", "--workers", "1", "-q")
FEDALA = ("run", "-m", "fedala", "--set", "fedala.max_init_epochs=2", *SMALL, "--checkpoint-every", "0")
DITTO = ("run", "-m", "ditto", "--seed", "1", *SMALL)
COMMANDS = {"run": FEDALA, "import": ("import", "other.db"), "upgrade": ("db", "upgrade")}
TRIES = int(os.environ.get("PFLBENCH_TRIES", "2"))


@dataclass(frozen=True)
class Undisturbed:
    """A command, the folder that it begins with, the events of one that nothing disturbed and what that left."""

    arguments: tuple[str, ...]
    begin: Path
    events: list[str]
    left: dict[str, Any]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    @cache
    def of(name: str) -> Undisturbed:
        folder, begin = tmp_path_factory.mktemp("whole") / "whole", tmp_path_factory.mktemp("begin")
        if name != "upgrade":
            made(begin, "db", "upgrade")
        if name == "import":
            made(begin, *FEDALA)
            shutil.copytree(begin, begin / "other")
            made(begin / "other", *DITTO)
            (begin / "other" / "pflbench.db").rename(begin / "other.db")
            shutil.rmtree(begin / "other")
        shutil.copytree(begin, folder)
        command = made(folder, *COMMANDS[name])
        return Undisturbed(COMMANDS[name], begin, command.events(), left(folder))

    return of


def made(folder: Path, *arguments: str) -> Command:
    command = Command(folder, *arguments)
    code, err = command.wait()
    assert code == 0, err
    return command


def some(number: int) -> list[int]:
    """Numbers below this one, at most TRIES, at even distances and with the last."""
    return sorted({round((number - 1) * (i + 1) / TRIES) for i in range(TRIES)})


def committed(events: list[str]) -> int:
    """Rounds whose commit was over when the last event came: by what the process itself wrote down."""
    done = pending = 0
    for name in events[:-1]:
        pending = 0 if name.startswith("BEGIN") else pending + (name == "INSERT INTO round")
        if name == "COMMIT":
            done, pending = done + pending, 0
    return done


def check(whole: Undisturbed, folder: Path, command: Command, refused: int = 0) -> None:
    """After a fault: nothing that was committed is gone, and the same command ends with what an undisturbed one leaves.

    refused: commits that may have failed; the process writes down that it asks for one, before it is over.
    """
    before = left(folder).get("pflbench.db", {})
    rounds = [row for row in before if row[0] == "round"]
    assert len(rounds) >= committed(command.events()) - refused
    made(folder, *whole.arguments)
    found = left(folder)
    assert found == whole.left
    assert all(found["pflbench.db"][row] for row in rounds)
    made(folder, "db", "check")


@pytest.mark.parametrize("name", rest_slow(COMMANDS, "run", "import"))
def test_kill_9(name: str, undisturbed: Callable[[str], Undisturbed], tmp_path: Path) -> None:
    """Before SQL statements and changes of files."""
    whole = undisturbed(name)
    for at in some(len(whole.events)):
        folder = Path(shutil.copytree(whole.begin, tmp_path / str(at)))
        command = Command(folder, *whole.arguments, kill_at=at)
        assert command.wait()[0] == -signal.SIGKILL
        assert len(command.events()) == at
        check(whole, folder, command)


@pytest.mark.parametrize(("name", "number"), rest_slow([(n, s) for n in ("run", "import") for s in (15, 1, 2)], ("run", 15)))
def test_a_signal(name: str, number: int, undisturbed: Callable[[str], Undisturbed], tmp_path: Path) -> None:
    """SIGTERM, SIGHUP, and Ctrl-C, which may come twice."""
    whole = undisturbed(name)
    for at in some(len(whole.events) * 3 // 4):
        folder = Path(shutil.copytree(whole.begin, tmp_path / str(at)))
        command = Command(folder, *whole.arguments)
        command.signal_at(at, number, *[number] * (number == signal.SIGINT))
        code, err = command.wait()
        assert code in (128 + number, 0), err  # 0: it was over
        assert "Traceback" not in err
        check(whole, folder, command)


FULL: dict[str, Callable[[int], Disturb]] = {"the database": full_database, "every file": small_files}


@pytest.mark.parametrize(("name", "what"), rest_slow([(n, w) for n in COMMANDS for w in FULL], ("run", "the database")))
def test_a_full_disk(name: str, what: str, undisturbed: Callable[[str], Undisturbed], tmp_path: Path) -> None:
    whole = undisturbed(name)
    had = (whole.begin / "pflbench.db").stat().st_size if name != "upgrade" else 4096
    for more in (0, *some(12)):
        folder = Path(shutil.copytree(whole.begin, tmp_path / str(more)))
        room = had + 4096 * more
        command = Command(folder, *whole.arguments, disturb=FULL[what](room // 4096 if what == "the database" else room))
        code, err = command.wait()
        assert code in (2, 0), err  # 0: it was enough
        assert code == 0 or re.search("Every round committed before is kept|could not be written", err), err
        assert "Traceback" not in err
        check(whole, folder, command, refused=int(code == 2))


def test_what_is_lost_is_seen(undisturbed: Callable[[str], Undisturbed], tmp_path: Path) -> None:
    whole = undisturbed("run")
    folder = Path(shutil.copytree(whole.begin, tmp_path / "folder"))
    command = made(folder, *whole.arguments)
    assert committed(command.events()) == 4
    for statement in ("UPDATE client_round SET loss = loss * (1 + 3e-16) WHERE round = 1", "DELETE FROM round WHERE round = 2"):
        with sqlite3.connect(folder / "pflbench.db") as connection:
            connection.execute(statement)
        connection.close()
        assert left(folder) != whole.left
        with pytest.raises(AssertionError):
            check(whole, folder, command)


def test_the_page_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/\S+\.py)`", page)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []
