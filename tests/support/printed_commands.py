"""What a printed `pflbench run` runs."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import typer

from pflbench.cli.options import run_options
from pflbench.cli.run import run as run_command
from pflbench.run.plan import plan
from pflbench.spec import RunSpec


@cache
def _command_of_run() -> Any:
    app = typer.Typer()
    app.command()(run_command)
    return typer.main.get_command(app)


def of_command(line: str) -> list[RunSpec]:
    """As the command line reads it."""
    return plan(run_options(_command_of_run().make_context("run", shlex.split(line)[2:]).params))
