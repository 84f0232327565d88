"""Calls of the command line, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pflbench.cli import main

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# A test run that was itself started in the background, or by nohup, ignores signals, and its processes would inherit that.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.argv[0] = "pflbench"
from pflbench.cli import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def environment(**variables: str) -> dict[str, str]:
    """Ours without the settings of whoever runs the tests."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PFLBENCH_")}
    return {**plain, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PFLBENCH_DOWNLOAD": "0", **variables}


def start(*arguments: str, folder: Path, program: str = PROGRAM, **variables: str) -> subprocess.Popen[str]:
    """A process of its own, as a shell starts it."""
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment(**variables), stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> Done:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return Done(process.returncode, out, err)


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The numbers of the processes that it has started for runs."""
    return [int(line) for line in os.popen(f"pgrep -P {process.pid} -f spawn_main").read().split()]


class Shell:
    """Calls in this process, in a folder of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = main(arguments)
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def refused(self, *arguments: str) -> str:
        """What an error of the user says: exit code 2, one or two lines on stderr, no traceback."""
        done = self(*arguments)
        assert_refused(done)
        return done.err


def assert_refused(done: Done) -> None:
    told = done.err[done.err.rindex("Error: ") :]
    assert done.code == 2, done
    assert 1 <= len(told.splitlines()) <= 2, done
    assert "Traceback" not in done.err


def parsed(done: Done, code: int = 0) -> Any:
    """What a command printed as JSON, which ended with this code."""
    assert done.code == code, done.err
    return json.loads(done.out)


def write(path: str, text: str) -> str:
    """A file of the user's, in folders that it makes."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    return path


def rows(query: str, database: Path | str = "pflbench.db") -> list[tuple[Any, ...]]:
    """What a command left in its database."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()


def until(condition: Callable[[], object]) -> None:
    """Waits for a minute at most."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it never came to that")
