"""`pflbench table`: results as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import error, say
from pflbench.cli.db import opened
from pflbench.cli.reports import (
    ClientsFilter,
    DatasetsFilter,
    MethodsFilter,
    ModelsFilter,
    PartitionsFilter,
    RoundsFilter,
    RunsFilter,
    Smoke,
    Status,
    WhereFilter,
    call,
    leading,
    one_at_a_time,
    table_format,
    uncollected,
    write_table,
)
from pflbench.errors import NothingYet, UserError
from pflbench.report.declared import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from pflbench.report import papermap
    from pflbench.report.selection import Filters
    from pflbench.report.tables.grid import Grid


_PAPERS = [name for name, table in TABLES.items() if table.as_printed]  # in the shape of a paper's
NAMES = (
    f"{', '.join(name for name in TABLES if name not in _PAPERS)}; of the papers: {', '.join(_PAPERS)}; "
    "table4 and such, as of the FedALA paper."
)


def _formats() -> list[str]:
    from pflbench.report.tables.grid import FORMATS

    return list(FORMATS)


def _stds() -> list[str]:
    from pflbench.report.statistics import STDS

    return list(STDS)


def _tests() -> list[str]:
    from pflbench.report.statistics import TESTS

    return list(TESTS)


@uncollected()
def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            autocompletion=o.completion(lambda: TABLES),
            help=NAMES,
        ),
    ] = "accuracy",
    methods: MethodsFilter = [],  # noqa: B006
    datasets: DatasetsFilter = [],  # noqa: B006
    partitions: PartitionsFilter = [],  # noqa: B006
    models: ModelsFilter = [],  # noqa: B006
    clients: ClientsFilter = [],  # noqa: B006
    rounds: RoundsFilter = [],  # noqa: B006
    run: RunsFilter = [],  # noqa: B006
    smoke: Smoke = False,
    where: WhereFilter = [],  # noqa: B006
    status: Status = [],  # noqa: B006
    select: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="The round that counts: best, last or mean-last:K. Default: best, as in the paper."),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(metavar="auto|always|never", help="The paper's values: where the protocol is the paper's, always, never."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="overhead: converged is within so many points of the best. Default: 0.5."),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(metavar="population|sample", autocompletion=o.completion(_stds), help="Default: population, as the paper."),
    ] = None,
    ci: Annotated[
        float | None, typer.Option(metavar="LEVEL", help="A bootstrap confidence interval of each mean, e.g. 0.95.")
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="wilcoxon|t|wilcoxon-clients",
            autocompletion=o.completion(_tests),
            help="Test rows against the best of each setting, paired by seed or by client, with Holm's correction.",
        ),
    ] = None,
    against: Annotated[str | None, typer.Option(metavar="METHOD", help="--test: against this row in place of the best.")] = None,
    runs: Annotated[bool, typer.Option("--runs", help="Name the runs of every cell.")] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            autocompletion=o.completion(_formats),
            help="text, markdown, latex, csv or json. Default: by the suffix of the file, else text.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file: .txt, .md, .tex, .csv or .json. Default: stdout.")
    ] = None,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Print a table: methods x settings, mean and population std over seeds; or one of the papers', beside their values."""
    from pflbench.report import papermap
    from pflbench.report.selection import Filters

    asked = papermap.of_kind("table", name)
    given: dict[str, Any] = {
        "select": select,
        "paper": paper,
        "tolerance": tolerance,
        "std": std,
        "ci": ci,
        "test": test,
        "against": against,
    }
    written = table_format("json" if as_json else format, output)
    one_at_a_time(name, asked, written, output)
    filters = Filters(methods, datasets, partitions, status, models, clients, rounds, run, where, smoke)

    def one(of: papermap.Part) -> Grid:
        with leading("table", of.name, db), opened(db) as engine:
            found: Grid = _call(of, engine, filters, given).grid()
        if runs:
            found = found.with_runs()
        return replace(found, notes=(*found.notes, f"Filtered: {filters.words}.")) if filters.words else found

    if len(asked) == 1:
        write_table(one(asked[0]), written, output)
        return
    made, refused = _each(asked, one)
    if not made:
        raise next((found for found in refused if isinstance(found, NothingYet)), refused[0])
    for k, found in enumerate(made):
        say(end="\n" * (k > 0))
        write_table(found, written, None)
    if missing := [found for found in refused if isinstance(found, NothingYet)]:
        for nothing in missing:
            error(nothing.message, nothing.hint)
        raise typer.Exit(2)


def _each(asked: Sequence[papermap.Part], make: Callable[[papermap.Part], Grid]) -> tuple[list[Grid], list[UserError]]:
    """Those of several tables that can be made, and what stands against the others, which may not have what a filter names."""
    made, refused = [], []
    for one in asked:
        try:
            made.append(make(one))
        except UserError as found:
            refused.append(found)
    return made, refused


def _call(part: papermap.Part, engine: Engine, filters: Filters, given: dict[str, Any]) -> Any:
    command, own = f"table {part.name}", TABLES[part.name]
    if not part.printed:
        return call(command, own, engine, filters, given)
    return call(command, TABLES[own.printed], engine, filters, {**given, "declared": own.needs.of(part.printed)})
