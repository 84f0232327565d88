"""What commands print where it cannot be printed: streams that are closed, full, or of an encoding without these characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import PROGRAM, environment


def printed(folder: Path, redirected: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Of a command in a shell of its own, its stdout redirected."""
    line = f'"$0" -c "$@" {redirected}'
    command = ["sh", "-c", line, sys.executable, PROGRAM, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(**variables), capture_output=True, check=False, timeout=120)


def test_a_reader_that_has_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", PROGRAM, "methods", "list"]
    process = subprocess.run(command, env=environment(), stdout=write, stderr=subprocess.PIPE, check=False, timeout=120)
    os.close(write)
    assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.parametrize(("stdout", "code", "told"), [("&-", 0, b""), ("/dev/full", 2, b"Error: No space left on device.\n")])
def test_a_stdout_that_is_closed_or_full(stdout: str, code: int, told: bytes, tmp_path: Path) -> None:
    done = printed(tmp_path, f">{stdout}", "methods", "list")
    assert (done.returncode, done.stderr) == (code, told)


def test_an_encoding_that_lacks_a_character(tmp_path: Path) -> None:
    """In JSON its escape is one of JSON's."""
    done = printed(tmp_path, "", "import", "gr\u00fcn.db", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)[0]["error"] == "There is no file gr\u00fcn.db."
    assert b"There is no file gr\\xfcn.db." in done.stderr
    assert done.returncode == 2
