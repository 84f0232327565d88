"""Shared by `table` and `plot`: the filters, and calling a report by its name."""

from __future__ import annotations

import atexit
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.console import command_line, message, say, stdout
from pflbench.errors import NothingYet, UserError
from pflbench.store.files import write_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.report.declared import Kind, Report
    from pflbench.report.papermap import Part
    from pflbench.report.selection import Filters
    from pflbench.report.style import Drawing
    from pflbench.report.tables.grid import Grid
    from pflbench.store.runs import Result


def _statuses() -> list[str]:
    from pflbench.store.schema import STATUSES

    return [*STATUSES, "any"]


FILTERS = o.group(
    methods=o.several("Only these; repeatable.", "--method", "-m", complete=o.method_names),
    datasets=o.several("Only these; repeatable.", "--dataset", "-d", complete=o.dataset_names),
    partitions=o.several(
        "Only these, as the report names them, e.g. 'Dir(0.1)'; repeatable.", "--partition", "-p", metavar="NAME"
    ),
    models=o.several("Only these; repeatable.", "--model", complete=o.models),
    clients=o.several("Only runs with so many clients; repeatable.", "--clients", kind=int, metavar="N"),
    rounds=o.several("Only runs of so many rounds; repeatable.", "--rounds", kind=int, metavar="N"),
    runs=o.several("Only this run, by number or key (its beginning suffices); repeatable.", "--run", metavar="RUN"),
    where=o.several(
        "Only runs with this value: fedala.p=2 for FedALA, train.optimizer=adamw for all methods; repeatable.",
        "--where",
        complete=o.complete_setting,
        metavar="METHOD.NAME=VALUE",
    ),
    status=o.several(
        "Only these; repeatable; any for all. Default: finished in tables and figures, else any.",
        "--status",
        complete=_statuses,
        metavar="STATUS",
    ),
    smoke=o.flag("Include runs of `reproduce --scale smoke`.", "--smoke"),
)
"""By these `table`, `plot`, `report`, `serve`, `export`, `track` and `runs list` choose runs: fields of selection.Filters."""
ROUND_RULE = o.option(
    str,
    "The round that counts: best (on test data, as in the paper; default), val (best on validation data, of runs with "
    "--val-share), last or mean-last:K.",
    "--round-rule",
    metavar="RULE",
)
AT = o.option(
    str,
    "accuracy, ranks, evidence: results at equal cost: only rounds up to which a run had spent so much since round 1 count. "
    "flops=5T, bytes=200M (of all clients), seconds=10min (of training) or rounds=50.",
    "--at",
    metavar="MEASURE=X",
)
TOLERANCE = o.option(
    float, "overhead: a run has converged within so many points of its best round. Default: 0.5.", min=0, metavar="POINTS"
)
METRIC = o.option(
    Literal["auc", "balanced-accuracy", "macro-f1", "after-training"],
    "accuracy, curves: this instead of accuracy, of runs with --metrics-every; after-training: of runs with "
    "--test-after-training.",
)
Format = Annotated[
    Literal["text", "markdown", "latex", "csv", "json"] | None,
    typer.Option("--format", "-f", help="Format of the table. Default: by the suffix of the file, else text."),
]


def found_runs(engine: Engine, which: o.Given) -> list[Result]:
    """The runs that pass the filters, including smoke runs, of any status unless one is named."""
    from pflbench.report.selection import Filters, statuses

    wanted = statuses(which["status"] or ["any"])
    return [run for run in Filters(**{**which, "smoke": True}).matching(engine) if run.status in wanted]


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage, neither now nor at the end of the process.

    It takes a fifth of a report's time, and finds a megabyte.
    """
    atexit.register(gc.freeze)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def provenance(runs: Iterable[int]) -> str:
    """The provenance in every written file: command, commit, runs."""
    from pflbench import __version__
    from pflbench.environment import commit

    numbers = ", ".join(map(str, sorted(set(runs))))
    version = ", commit ".join(filter(None, (__version__, commit())))
    made = f"Made by `{command_line()}` (pflbench {version})"
    return f"{made} from runs {numbers}." if numbers else f"{made}."


def call(command: str, report: Report, engine: Engine, filters: Filters, given: Mapping[str, Any], function: str = "") -> Any:
    """The report with the given options. Raises UserError for an option that it does not have."""
    made, options = report.load(function), asked(given)
    known = inspect.signature(made).parameters
    refuse(command, [name for name in report.refuses if getattr(filters, name)])
    refuse(command, [name for name in options if name not in known])
    return made(engine, filters, **options)


def asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options of a group."""
    return {name: value for name, value in given.items() if value not in (None, []) and value is not False}


def refuse(what: str, options: Iterable[str]) -> None:
    """Raises UserError for options that do not belong to a command or figure, by field."""
    for name in options:
        flag = name if name in ("status", "references", "clients", "rounds") else name.removesuffix("s")
        raise UserError(f"--{flag.replace('_', '-')} does not belong to {what}.", "Leave it out.")


def one_at_a_time(name: str, parts: Sequence[Part], format: str | None, output: Path | None) -> None:
    """Raises UserError for several tables in one file or JSON document."""
    if len(parts) > 1 and (output is not None or format == "json"):
        named = ", ".join(part.command_name for part in parts)
        raise UserError(f"'{name}' is {len(parts)} tables: {named}.", "For a file or JSON name one of them.")


def table_format(format: str | None, output: Path | None) -> str:
    """The format of a table, text on stdout. Raises UserError as `file_format`."""
    from pflbench.report.tables.grid import SUFFIXES

    return file_format(format, output, SUFFIXES, "text")


def file_format(format: str | None, output: Path | None, suffixes: Mapping[str, str], default: str) -> str:
    """The format of a file: as asked for, else as its suffix says; the default for stdout.

    Raises UserError where there is none, and where the two contradict each other.
    """
    if output is None:
        return format or default
    by_name = suffixes.get(output.suffix.lower())
    if format is not None and by_name not in (None, format):
        raise UserError(f"--format {format} contradicts the name {output}.", "Leave out one of them, or change the name.")
    if chosen := format or by_name:
        return chosen
    raise UserError(f"The name {output} does not say a format.", f"Let it end in {', '.join(suffixes)}, or add --format.")


@contextmanager
def leading(kind: Kind, name: str) -> Iterator[None]:
    """Adds to NothingYet the command that makes the runs."""
    from pflbench.report.declared import TABLES
    from pflbench.report.papermap import Part

    try:
        yield
    except NothingYet as nothing:
        if kind == "table" and not TABLES[name].reproducible:
            raise
        how = f"pflbench reproduce {Part(kind, name).command_name}"
        hint = f"In about a minute: {how} --scale smoke. In full: {how}; --dry-run lists its runs and their time. {nothing.hint}"
        raise NothingYet(nothing.message, hint.rstrip()) from None


def write_table(found: Grid, format: str, output: Path | None) -> None:
    """The table on stdout, as wide as the terminal; or in a file, with its provenance."""
    from pflbench.report.tables.grid import render

    if output is None:
        say(render(found, format, width=stdout().width if sys.stdout.isatty() else None), end="")
        return
    found = replace(found, notes=(*found.notes, provenance(found.runs)))
    write_text(output, render(found, format, width=None))
    message(f"Wrote {output}.")


def write_figure(drawing: Drawing, target: Path) -> None:
    """The figure in a file, its caption on stderr and the file's name on stdout."""
    drawing.save(target, provenance(drawing.runs))
    for line in (drawing.caption, *drawing.notes):
        message(line)
    say(target)
