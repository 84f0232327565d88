"""A process that has imported everything once, and forks a child for each command: a hundred tries take seconds.

It reads lines of JSON from stdin and answers each by one on stdout. A child is pflbench's own command line, from its arguments to
its exit code, after what `disturbances` does to it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Any

import typer.main
from support.faults import disturbances

import pflbench.cli

# What commands import late. Beside these: every module of the package.
LATE = (
    *(
        "torch",
        "sympy",
        "sklearn.datasets",
        "pandas",
        "matplotlib.pyplot",
        "jinja2",
        "psycopg",
        "plotly.offline",
        "rich._emoji_codes",
    ),
    *("pyarrow.parquet", "pyarrow.dataset", "pyarrow.acero", "alembic.command", "alembic.config", "alembic.migration"),
    *("alembic.autogenerate", "importlib_metadata._adapters", "email.headerregistry", "PIL.PpmImagePlugin", "PIL.JpegPresets"),
    *("rich._emoji_codes", "typer._adapters", "http.server", "h5py"),
)


def main() -> int:
    prepare()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    questions = os.fdopen(os.dup(0), "r")
    for line in questions:
        asked = json.loads(line)
        if asked["do"] == "start":
            number = os.fork()
            if number == 0:
                answers.close()
                questions.close()
                try:
                    return child(**asked["what"])
                except KeyboardInterrupt:  # before the command has begun
                    os._exit(130)
            answers.write(json.dumps({"pid": number}) + "\n")
        else:
            answers.write(json.dumps({"code": waited(asked["pid"], asked["seconds"])}) + "\n")
    return 0


def prepare() -> None:
    modules = (module.name for module in pkgutil.walk_packages(pflbench.__path__, "pflbench."))
    for name in (*LATE, *(name for name in modules if "__main__" not in name and "template" not in name)):
        with suppress(ImportError):  # of what only some have, such as a driver
            importlib.import_module(name)
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(pflbench.cli.app)
    gc.freeze()


def waited(number: int, seconds: float) -> int | None:
    """The exit code, negative for the signal that killed it; None for one that had to be killed, since it did not end."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            return None
        time.sleep(0.002)


def child(arguments: list[str], folder: str, out: str, variables: dict[str, str], disturbed: list[tuple[str, Any]]) -> int:
    os.setsid()
    os.chdir(folder)
    os.environ.update(variables)
    for number, name in ((0, os.devnull), (1, f"{out}.out"), (2, f"{out}.err")):
        handle = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    # Whoever started the tests may have them ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.argv = ["pflbench", *arguments]
    for name, settings in disturbed:
        getattr(disturbances, name)(**settings)
    return pflbench.cli.main()


if __name__ == "__main__":
    sys.exit(main())
