"""What `table` and `plot` share: which runs they are about, and the call of a report by its name."""

from __future__ import annotations

import atexit
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import command_line, duration, message, say, stdout
from pflbench.cli.db import opened_if_there
from pflbench.errors import NothingYet, UserError, unknown
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


MethodsFilter = Annotated[
    list[str],
    typer.Option("--method", "-m", metavar="NAME", autocompletion=o.complete_method, help="Only these; repeatable."),
]
DatasetsFilter = Annotated[
    list[str],
    typer.Option("--dataset", "-d", metavar="NAME", autocompletion=o.completion(o.dataset_names), help="Only these; repeatable."),
]
PartitionsFilter = Annotated[
    list[str],
    typer.Option("--partition", "-p", metavar="NAME", help="Only these, as the report names them, e.g. 'Dir(0.1)'; repeatable."),
]
ModelsFilter = Annotated[
    list[str], typer.Option("--model", metavar="NAME", autocompletion=o.completion(o.models), help="Only these; repeatable.")
]
ClientsFilter = Annotated[list[int], typer.Option("--clients", metavar="N", help="Only runs with so many clients; repeatable.")]
RoundsFilter = Annotated[list[int], typer.Option("--rounds", metavar="N", help="Only runs of so many rounds; repeatable.")]
RunsFilter = Annotated[
    list[str], typer.Option("--run", metavar="RUN", help="Only this one, by number or (beginning of) key; repeatable.")
]
WhereFilter = Annotated[
    list[str],
    typer.Option(
        "--where",
        metavar="METHOD.NAME=VALUE",
        autocompletion=o.complete_setting,
        help="Of this method only runs with this hyperparameter, e.g. fedala.p=2; of all methods train.optimizer=adamw; "
        "repeatable.",
    ),
]
Status = Annotated[
    list[str],
    typer.Option("--status", metavar="STATUS", autocompletion=o.completion(_statuses), help="Default: finished; any for all."),
]
StatusFilter = Annotated[
    list[str],
    typer.Option(
        "--status", metavar="STATUS", autocompletion=o.completion(_statuses), help="Only these; repeatable. Default: all."
    ),
]
Smoke = Annotated[bool, typer.Option("--smoke", help="With runs of `reproduce --scale smoke`, which are left out otherwise.")]


def found_runs(
    engine: Engine,
    methods: Sequence[str],
    datasets: Sequence[str],
    partitions: Sequence[str],
    runs: Sequence[str],
    status: Sequence[str],
) -> list[Result]:
    """The runs that pass all filters, with their status as it is now. Raises UserError where there is none to choose from."""
    from pflbench.report.selection import Filters, statuses
    from pflbench.store.runs import as_it_is_now, find

    wanted = statuses(status or ["any"])
    named = {find(engine, run).id for run in runs}
    found = (as_it_is_now(engine, run) for run in Filters(methods, datasets, partitions).matching(engine))
    return [run for run in found if run.status in wanted and (not runs or run.id in named)]


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
    """What stands in every file that is written: the command, the commit, the runs."""
    from pflbench import __version__
    from pflbench.environment import commit

    found = commit()
    version = f"{__version__}, commit {found}" if found else __version__
    numbers = ", ".join(map(str, sorted(set(runs))))
    made = f"Made by `{command_line()}` (pflbench {version})"
    return f"{made} from runs {numbers}." if numbers else f"{made}."


def call(command: str, report: Report, engine: Engine, filters: Filters, given: dict[str, Any], function: str = "") -> Any:
    """The report with the options that were given; one that it does not have is a UserError."""
    options = {name: value for name, value in given.items() if value not in (None, [])}
    known = inspect.signature(report.load(function)).parameters
    refused = [name for name in report.refuses if getattr(filters, name)] + [name for name in options if name not in known]
    for name in refused:
        flag = "--" + name.removesuffix("s" if name not in ("status", "references") else "")
        raise UserError(f"{flag} does not belong to `pflbench {command}`.", "Leave it out.")
    return report.build(engine, filters, function, **options)


def one_at_a_time(name: str, parts: Sequence[Part], format: str | None, output: Path | None) -> None:
    """Raises UserError where several tables are to go into one file or one JSON document."""
    if len(parts) > 1 and (output is not None or format == "json"):
        named = ", ".join(part.command_name for part in parts)
        raise UserError(f"'{name}' is {len(parts)} tables: {named}.", "For a file or JSON name one of them.")


def table_format(format: str | None, output: Path | None) -> str:
    """The format of a table: as asked for, else as the file's suffix says, else text.

    Raises UserError for an unknown one, and where the two contradict each other.
    """
    from pflbench.report.tables.grid import FORMATS, SUFFIXES

    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if output is None:
        return format or "text"
    said = SUFFIXES.get(output.suffix.lower())
    if format is None and said is None:
        raise UserError(f"The name {output} does not say a format.", f"Let it end in {', '.join(SUFFIXES)}, or add --format.")
    if format is not None and said not in (None, format):
        raise UserError(
            f"--format {format} contradicts the name {output}, which says {said}.", "Leave out one of them, or change the name."
        )
    return format or said or "text"


@contextmanager
def leading(kind: Kind, name: str, db: str, data_dir: Path = o.DEFAULT_DATA) -> Iterator[None]:
    """Where there is nothing yet, the error says what it takes: of which paper it is, how many runs, how long, the command."""
    try:
        yield
    except NothingYet as nothing:
        from pflbench.reproduce.overview import command, need

        with opened_if_there(db) as engine:
            words, left = need(kind, name, engine, data_dir)
        times = [f"{scale} about {duration(seconds)}" for scale, seconds in left.items() if seconds]
        known = ", ".join([*times, "smoke about a minute"]) + ("" if times else ", the rest not known before a first run")
        takes = f"{words[0].upper()}{words[1:]}; {known}: {command(kind, name)}."
        raise NothingYet(nothing.message, f"{takes} {nothing.hint}".rstrip()) from None


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
