"""The command line. Commands import what they need when they are called, so that `pflbench --help` is quick."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from pflbench import __version__, interrupts
from pflbench.cli import (
    data,
    db,
    exchange,
    methods,
    models,
    partition,
    plot,
    reproduce,
    run,
    runs,
    site,
    sweep,
    table,
    track,
    tune,
)
from pflbench.cli.console import BROKEN_PIPE, error, flushed, prepare_streams, remember, say
from pflbench.cli.help import LongCommand
from pflbench.errors import UserError, unknown, why

app = typer.Typer(
    help="A benchmark for personalized federated learning: every method, every round and every client in one database.",
    epilog="First steps: pflbench run -m fedavg -m fedala -d digits, then pflbench table accuracy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.add_typer(partition.app, name="partition")
app.add_typer(methods.app, name="methods")
app.add_typer(models.app, name="models")
app.command(cls=LongCommand)(run.run)
app.add_typer(sweep.app, name="sweep")
app.command(cls=LongCommand)(tune.tune)
app.add_typer(runs.app, name="runs")
app.command()(table.table)
app.command()(plot.plot)
app.command(cls=LongCommand, epilog=reproduce.MAP)(reproduce.reproduce)
app.command()(site.report)
app.command()(site.serve)
app.command()(exchange.export)
app.command("import")(exchange.import_)
app.add_typer(track.app, name="track")
app.add_typer(db.app, name="db")
app.command()(db.doctor)

# Typer exports this one of Click's exceptions; its base is that of all errors in the use of a command.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"pflbench {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0, 2 for an error that the user can mend, 1 for a bug.

    141, without a message, if the reader of stdout has ended, such as `head`.
    Ctrl-C, SIGTERM and SIGHUP end it with 130, 143 and 129. With PFLBENCH_DEBUG=1 exceptions pass, with their traceback.
    """
    alone = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    remember(arguments)
    prepare_streams()
    with interrupts.caught(last=alone):
        code = _execute(arguments)
        return interrupts.exit_code() if code and interrupts.arrived() else code


def _execute(arguments: Sequence[str]) -> int:
    try:
        return flushed(int(app(args=arguments, prog_name="pflbench", standalone_mode=False) or 0))
    except KeyboardInterrupt:
        return interrupts.exit_code()
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # Click leaves so, with 1
            return flushed(BROKEN_PIPE)
        raise
    except Exception as raised:
        if os.environ.get("PFLBENCH_DEBUG") == "1":
            raise
        code, text = _explain(raised, arguments)
        if text:
            with suppress(OSError):  # the terminal may be gone
                error(text)
        return flushed(code)


def _explain(raised: Exception, arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code, and the message with its hint."""
    if isinstance(raised, UserError):
        return 2, str(raised)
    if isinstance(raised, _UsageError):
        return 2, _usage(raised)
    if isinstance(raised, typer.Abort):
        return interrupts.exit_code(), "Aborted."
    if isinstance(raised, OSError):
        where = f": {raised.filename}" if raised.filename else ""
        return 2, f"{raised.strerror or raised}{where}."
    if "sqlalchemy" in sys.modules:
        from sqlalchemy.exc import OperationalError

        if isinstance(raised, OperationalError):
            return 2, f"The database failed: {raised.orig}.\n`pflbench db check` looks for damage."
    from pflbench import plugins

    what = f"{plugins.described(raised)}.\n"
    if plugins.line_of(raised):
        return 2, f"{what}The error is in your own code, or in what it calls. {plugins.TRACEBACK}"
    if any(".py" in word for word in arguments):
        what += "It was raised where pflbench uses your own code: probably a signature or a return value there is wrong. "
        return 2, f"{what}`pflbench methods test` finds most errors of a method. {plugins.TRACEBACK}"
    text = " ".join(str(raised).split())[:500]
    return 1, f"{type(raised).__name__}: {text}\nA bug of pflbench: please report it with what PFLBENCH_DEBUG=1 shows."


def _usage(raised: Any) -> str:
    details: list[dict[str, Any]] = getattr(raised.__cause__, "errors", list)()
    if details and raised.param is not None and (valid := re.search(r" is not one of (.+)\.", details[0]["msg"])):
        return str(unknown(raised.param.opts[0], details[0]["input"], re.findall(r"'([^']+)'", valid[1])))
    if details and raised.param is not None:  # a value that Pydantic refused to Typer
        text = f"{raised.param.opts[0]} {details[0]['input']} is not possible: {why(details)}"
    else:
        text = " ".join(raised.format_message().split())
    if not text:  # a group without a command: its help has been printed
        return ""
    command = raised.ctx.command_path if raised.ctx else "pflbench"
    end = "" if text.endswith((".", "?", ")")) else "."
    return f"{text}{end}\nSee `{command} --help`."
