"""A pipe or a device in a file's place is refused at once: it may have no end, or nobody writes to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import Shell

RUN = ("run", "-d", "digits", "-r", "1")
COMMANDS = {
    "npz": ("run", "-m", "fedavg", "-d", "npz:{}"),
    "csv": ("run", "-m", "fedavg", "-d", "csv:{}"),
    "data": ("run", "-m", "fedavg", "-d", "{}.py:make"),
    "model": (*RUN, "-m", "fedavg", "--model", "{}.py"),
    "plug-in": (*RUN, "-m", "fedavg", "--plugin", "{}.py"),
    "study": ("sweep", "{}.py", "--dry-run"),
    "import": ("import", "{}"),
    "database": (*RUN, "-m", "fedavg", "--db", "{}"),
    "copy": ("db", "copy", "{}", "new.db"),
    "pfllib": ("run", "-m", "fedavg", "-d", "mnist", "-p", "pfllib:{}s"),
}


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """What hangs ends as a failure, not as a suite that hangs."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_pipe_is_no_file(kind: str, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "pipes").mkdir()
    for name in ("pipe", "pipe.py", "pipes/config.json"):
        os.mkfifo(tmp_path / name)
    told = shell.refused(*(word.format(tmp_path / "pipe") for word in COMMANDS[kind]))
    assert "is a pipe or a device, not a file." in told


@pytest.mark.parametrize("kind", ["npz", "csv", "import", "database"])
def test_a_device_is_no_file(kind: str, shell: Shell) -> None:
    assert "/dev/zero is a pipe or a device" in shell.refused(*(word.format("/dev/zero") for word in COMMANDS[kind]))
