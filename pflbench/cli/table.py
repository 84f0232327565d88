"""`pflbench table`: results as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.console import error, say
from pflbench.cli.db import opened
from pflbench.cli.reports import (
    AT,
    FILTERS,
    METRIC,
    ROUND_RULE,
    TOLERANCE,
    Format,
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
    from pflbench.report.tables.grid import Grid


_PAPERS = [name for name, table in TABLES.items() if table.as_printed]  # in the shape of a paper's
NAMES = (
    f"{', '.join(name for name in TABLES if name not in _PAPERS)}; of the papers: {', '.join(_PAPERS)}; "
    "table4 and such, as of the FedALA paper."
)


_NUMBERS = o.group(
    round_rule=ROUND_RULE,
    at=AT,
    metric=METRIC,
    paper=o.option(Literal["auto", "always", "never"], "Show the paper's values: auto: where the protocol is the paper's."),
    tolerance=TOLERANCE,
    target=o.option(
        float, "time-to-accuracy: the accuracy. Default: nine tenths of each setting's best.", min=0, max=100, metavar="PERCENT"
    ),
    std=o.option(Literal["population", "sample"], "Kind of standard deviation. Default: population, as in the paper."),
    ci=o.option(float, "Add a bootstrap confidence interval of each mean, e.g. 0.95.", metavar="LEVEL"),
    test=o.option(
        Literal["wilcoxon", "t", "wilcoxon-clients"],
        "Test rows against the best of each setting, paired by seed or by client, with Holm's correction.",
    ),
    against=o.option(str, "--test: compare with this row instead of the best.", metavar="METHOD"),
    study=o.option(str, "tuned: only this study.", metavar="NAME"),
)


@uncollected()
@o.taking(which=FILTERS, numbers=_NUMBERS)
def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", autocompletion=lambda: TABLES, help=NAMES)] = "accuracy",
    *,
    which: o.Given,
    numbers: o.Given,
    with_runs: Annotated[bool, typer.Option("--runs", help="Name the runs of every cell.")] = False,
    format: Format = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file: .txt, .md, .tex, .csv or .json. Default: stdout.")
    ] = None,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Print a table: methods x settings, mean and population std over seeds; or one of the papers', beside their values."""
    from pflbench.report import papermap
    from pflbench.report.selection import Filters

    asked = papermap.resolve(name, "table")
    written = table_format("json" if as_json else format, output)
    one_at_a_time(name, asked, written, output)
    filters = Filters(**which)

    def one(of: papermap.Part) -> Grid:
        own = TABLES[of.name]
        given = {**numbers, "declared": own.needs.of(of.printed)} if of.printed else numbers
        with leading("table", of.name), opened(db) as engine:
            report = TABLES[own.printed] if of.printed else own
            found: Grid = call(f"`pflbench table {of.name}`", report, engine, filters, given).grid()
        if with_runs:
            found = found.with_runs()
        return replace(found, notes=(*found.notes, f"Filtered: {filters.words}.")) if filters.words else found

    made: list[Grid] = []  # of several tables one may not have what a filter names
    refused: list[UserError] = []
    for part in asked:
        try:
            made.append(one(part))
        except UserError as failed:
            refused.append(failed)
    missing = [failed for failed in refused if isinstance(failed, NothingYet)]
    if not made:
        raise (missing or refused)[0]
    for k, grid in enumerate(made):
        say(end="\n" * (k > 0))
        write_table(grid, written, output)
    for nothing in missing:
        error(nothing)
    if missing:
        raise typer.Exit(2)
