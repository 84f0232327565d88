"""A pipe or a device in a file's place is refused at once: it may have no end, or nobody writes to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.command import Shell

COMMANDS = {
    "npz": ("run", "-m", "fedavg", "-d", "npz:{}"),
    "plug-in": ("run", "-m", "fedavg", "--plugin", "{}.py"),
    "study": ("sweep", "{}.py", "--dry-run"),
    "import": ("import", "{}"),
    "database": ("run", "-m", "fedavg", "--db", "{}"),
    "pfllib": ("run", "-m", "fedavg", "-d", "mnist", "-p", "pfllib:{}s"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_pipe_is_no_file(kind: str, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "pipes").mkdir()
    for name in ("pipe", "pipe.py", "pipes/config.json"):
        os.mkfifo(tmp_path / name)
    told = shell.refused(*(word.format(tmp_path / "pipe") for word in COMMANDS[kind]))
    assert "is a pipe or a device, not a file." in told
