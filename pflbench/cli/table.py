"""`pflbench table`: results as a table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, stdout
from pflbench.cli.db import opened
from pflbench.cli.reports import DatasetsFilter, MethodsFilter, PartitionsFilter, Status, call, provenance
from pflbench.errors import unknown


def _tables() -> list[str]:
    from pflbench.report import TABLES

    return list(TABLES)


def _formats() -> list[str]:
    from pflbench.report.render import FORMATS

    return list(FORMATS)


def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", autocompletion=o.completion(_tables), help="accuracy.")] = "accuracy",
    methods: MethodsFilter = [],  # noqa: B006
    datasets: DatasetsFilter = [],  # noqa: B006
    partitions: PartitionsFilter = [],  # noqa: B006
    status: Status = [],  # noqa: B006
    select: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="The round that counts: best, last or mean-last:K. Default: best, as in the paper."),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(metavar="auto|always|never", help="The paper's values: where the protocol is the paper's, always, never."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            autocompletion=o.completion(_formats),
            help="text, markdown, latex, csv or json.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Print a table: methods x settings, mean and population std over seeds."""
    from pflbench.report import TABLES
    from pflbench.report.render import render

    if name not in TABLES:
        raise unknown("table", name, TABLES)
    given: dict[str, Any] = {
        "methods": methods,
        "datasets": datasets,
        "partitions": partitions,
        "status": status,
        "select": select,
        "paper": paper,
    }
    with opened(db) as engine:
        found = call(f"table {name}", TABLES[name], engine, given)
    width = stdout().width if output is None and sys.stdout.isatty() else None
    if output is not None:
        runs = (run for row in found.cells for cell in row if cell for run in cell.runs)
        found = replace(found, notes=(*found.notes, provenance(runs)))
    text = render(found, "json" if as_json else format or "text", width=width)
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
        message(f"Wrote {output}.")
