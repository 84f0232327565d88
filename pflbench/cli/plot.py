"""`pflbench plot`: results as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message
from pflbench.cli.db import opened
from pflbench.cli.reports import DatasetsFilter, MethodsFilter, PartitionsFilter, Status, call, provenance
from pflbench.errors import unknown


def _plots() -> list[str]:
    from pflbench.report import PLOTS

    return list(PLOTS)


def plot(
    name: Annotated[str, typer.Argument(metavar="PLOT", autocompletion=o.completion(_plots), help="curves or distribution.")],
    methods: MethodsFilter = [],  # noqa: B006
    datasets: DatasetsFilter = [],  # noqa: B006
    partitions: PartitionsFilter = [],  # noqa: B006
    status: Status = [],  # noqa: B006
    x: Annotated[str | None, typer.Option("--x", metavar="round|seconds", help="curves: the x axis. Default: round.")] = None,
    band: Annotated[str | None, typer.Option(metavar="minmax|std", help="curves: the band over seeds. Default: minmax.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file. Default: the plot's name, .png.")
    ] = None,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Draw a figure, write it to a file and print the file's name."""
    from pflbench.report import PLOTS

    if name not in PLOTS:
        raise unknown("plot", name, PLOTS)
    given: dict[str, Any] = {
        "methods": methods,
        "datasets": datasets,
        "partitions": partitions,
        "status": status,
        "x": x,
        "band": band,
    }
    target = output or Path(f"{name}.png")
    with opened(db) as engine:
        drawing = call(f"plot {name}", PLOTS[name], engine, given)
    drawing.save(target, provenance(drawing.runs))
    for line in (drawing.caption, *drawing.notes):
        message(line)
    print(target)
