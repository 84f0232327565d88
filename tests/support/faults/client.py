"""What a test says to the fork server: start this command with these disturbances, and wait for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from support.command import ROOT, TESTS, Done, environment

_numbers = count()
Disturbance = tuple[str, dict[str, Any]]


@dataclass
class Child:
    """A command under way."""

    pid: int
    name: Path  # of its outputs, without the suffix
    forks: Forks

    def wait(self, seconds: float = 90.0) -> Done:
        """Its end. One that does not end by itself is killed, and fails the test."""
        code = self.forks.ask(do="wait", pid=self.pid, seconds=seconds)["code"]
        out, err = (self.name.with_suffix(suffix).read_text(errors="replace") for suffix in (".out", ".err"))
        assert code is not None, f"it did not end within {seconds} seconds: {err}"
        return Done(code, out, err)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def killed_after(self, seconds: float) -> Done:
        time.sleep(seconds)
        self.signal(signal.SIGKILL)
        return self.wait()

    def said(self, text: str, seconds: float = 60.0) -> None:
        """Waits until it has said this on stderr."""
        until = time.monotonic() + seconds
        while text not in self.name.with_suffix(".err").read_text(errors="replace"):
            assert time.monotonic() < until, "it never said so"
            time.sleep(0.005)


class Forks:
    """The server. scratch: where outputs of commands lie, apart from the folders that commands are made in."""

    def __init__(self, server: subprocess.Popen[str], scratch: Path) -> None:
        self._server, self.scratch = server, scratch

    def ask(self, **asked: Any) -> dict[str, Any]:
        to, back = self._server.stdin, self._server.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(asked) + "\n")
        to.flush()
        found: dict[str, Any] = json.loads(back.readline())
        return found

    def start(self, *arguments: object, folder: Path, disturbed: list[Disturbance] | None = None, **variables: str) -> Child:
        name = self.scratch / f"command-{next(_numbers)}"
        for suffix in (".out", ".err"):
            name.with_suffix(suffix).touch()
        what = {"arguments": [str(one) for one in arguments], "folder": str(folder), "out": str(name)}
        pid = self.ask(do="start", what={**what, "variables": variables, "disturbed": disturbed or []})["pid"]
        return Child(pid, name, self)

    def __call__(self, *arguments: object, folder: Path, disturbed: list[Disturbance] | None = None, **variables: str) -> Done:
        return self.start(*arguments, folder=folder, disturbed=disturbed, **variables).wait()

    def path(self, name: str) -> Path:
        """A new file's, for what a disturbance writes."""
        return self.scratch / f"{name}-{next(_numbers)}"


@contextmanager
def forking(scratch: Path) -> Iterator[Forks]:
    pipe: int = subprocess.PIPE
    errors: IO[str]
    with (scratch / "server").open("w") as errors:
        path = os.pathsep.join([str(TESTS), str(ROOT)])
        made = environment(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", MPLBACKEND="agg")
        command = [sys.executable, "-m", "support.faults.server"]
        server = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=made)
        try:
            yield Forks(server, scratch)
        finally:
            server.kill()
            server.wait()
