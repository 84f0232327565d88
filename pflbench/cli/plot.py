"""`pflbench plot`: results as a figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.db import opened
from pflbench.cli.progress import bars
from pflbench.cli.reports import (
    AT,
    FILTERS,
    METRIC,
    ROUND_RULE,
    TOLERANCE,
    asked,
    call,
    leading,
    refuse,
    uncollected,
    write_figure,
)
from pflbench.errors import UserError, unknown
from pflbench.report.declared import PLOTS

if TYPE_CHECKING:
    from pflbench.report.style import Drawing

*_FIRST, _LAST = PLOTS
NAMES = f"{', '.join(_FIRST)} or {_LAST}; figure4 and such, as of the FedALA paper."


_OF_PLOTS = o.group(
    over=o.option(Literal["rounds", "seconds", "bytes", "flops"], "curves: the x axis. Default: rounds."),
    band=o.option(Literal["minmax", "std"], "curves: the band over seeds. Default: minmax."),
    y_min=o.option(float, "curves: where the y axis begins, in percent. Default: below the lowest value.", metavar="PERCENT"),
    references=o.flag("curves: also PFLlib's series of the same datasets (see `pflbench import`).", "--references"),
    round=o.option(int, "attention: the round. Default: the last stored one.", "--round", min=0),
    against=o.option(
        Literal["local", "fedavg"], "clients: the method at zero. Default: local, or fedavg in settings without it."
    ),
    client=o.option(int, "ala-convergence (default: 8), trajectory (default: 4).", min=0),
    round_rule=ROUND_RULE,
    at=AT,
    metric=METRIC,
    tolerance=TOLERANCE,
)


@uncollected()
@o.taking(which=FILTERS, options=_OF_PLOTS)
def plot(
    name: Annotated[str, typer.Argument(metavar="PLOT", autocompletion=lambda: PLOTS, help=NAMES)],
    *,
    which: o.Given,
    options: o.Given,
    surface: Annotated[
        bool, typer.Option("--surface", help="trajectory: compute and store the loss surface, which takes minutes.")
    ] = False,
    width: Annotated[
        str | None,
        typer.Option(metavar="WIDTH", help="one-column (3.3 in), two-column (6.9 in) or inches. Default: what the panels need."),
    ] = None,
    font_size: Annotated[
        float, typer.Option("--font-size", min=4, max=30, metavar="POINTS", help="Size of the text in print.")
    ] = 7,
    title: Annotated[
        bool, typer.Option(" /--no-title", show_default=False, help="Leave out titles, for a document with its own caption.")
    ] = True,
    legend: Annotated[Literal["auto", "inside", "right", "below", "none"], typer.Option(help="Where the legend is.")] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file. Default: the plot's name, .png.")
    ] = None,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
) -> None:
    """Draw a figure to a file, with its caption in a text file beside it, and print the file's name."""
    from pflbench.report import papermap, style
    from pflbench.report.selection import Filters

    (part,) = papermap.resolve(name, "plot")
    name, filters = part.name, Filters(**which)
    page = style.PrintPage(None if width is None else style.inches_of(width), font_size, title, legend)
    target = output or Path(f"{part.printed.lower().replace(' ', '') or name}.png")
    if target.suffix.lower() not in style.SUFFIXES:
        raise unknown("figure format", target.suffix or target.name, style.SUFFIXES)
    if surface and name != "trajectory":
        refuse(f"`pflbench plot {name}`", ["surface"])
    with style.on(page):
        if part.printed:
            drawing = _printed(part.printed, {**which, **options}, data_dir)
        else:
            drawing = _drawn(name, which, options, db, data_dir, surface=surface)
    if filters.words:
        drawing = replace(drawing, notes=(*drawing.notes, f"Filtered: {filters.words}."))
    write_figure(drawing, target)


def _drawn(name: str, which: o.Given, options: o.Given, db: str, data_dir: Path, *, surface: bool) -> Drawing:
    """The figure of the runs that there are; that of partitions also without any."""
    from pflbench.report.selection import Filters

    own, filters = PLOTS[name], Filters(**which)
    try:
        with leading("plot", name), opened(db) as engine:
            if surface:
                from pflbench.reproduce import show

                paths = call("`pflbench plot trajectory`", own, engine, filters, options, "paths")
                show.keep_surface(engine, paths, data_dir)
            drawing: Drawing = call(f"`pflbench plot {name}`", own, engine, filters, options)
            return drawing
    except UserError as missing:
        more = asked({**which, **options}).keys() - {"datasets", "partitions"}
        if name != "distribution" or more or missing.__cause__ is not None:
            raise
        from pflbench.reproduce import show

        with bars() as progress:
            return show.planned_partitions(filters.datasets, filters.partitions, data_dir, progress, missing)


def _printed(number: str, given: o.Given, data_dir: Path) -> Drawing:
    """A figure of the FedALA paper on data alone, with what it shows there, whatever the database has."""
    from pflbench.reproduce import show
    from pflbench.reproduce.goal import goals

    chosen = {name: given[name] for name in ("datasets", "partitions")}
    refuse(f"{number}, which shows data alone", [name for name in asked(given) if name not in chosen])
    (goal,) = goals(number, **chosen)
    with bars() as progress:
        return show.data_drawing(goal, data_dir, progress)
