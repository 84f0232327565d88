"""`pflbench plot`: results as a figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.db import opened, opened_if_there
from pflbench.cli.progress import data_view
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
    uncollected,
    write_figure,
)
from pflbench.errors import UserError, unknown
from pflbench.report.declared import PLOTS

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.report import style
    from pflbench.report.selection import Filters

*_FIRST, _LAST = PLOTS
NAMES = f"{', '.join(_FIRST)} or {_LAST}: see docs/tables-and-figures.md; figure4 and such, as of the FedALA paper."


def _widths() -> list[str]:
    from pflbench.report.style import WIDTHS

    return list(WIDTHS)


def _legends() -> list[str]:
    from pflbench.report.style import LEGENDS

    return list(LEGENDS)


@uncollected()
def plot(
    name: Annotated[str, typer.Argument(metavar="PLOT", autocompletion=o.completion(lambda: PLOTS), help=NAMES)],
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
    x: Annotated[str | None, typer.Option("--x", metavar="round|seconds", help="curves: the x axis. Default: round.")] = None,
    band: Annotated[str | None, typer.Option(metavar="minmax|std", help="curves: the band over seeds. Default: minmax.")] = None,
    references: Annotated[
        bool, typer.Option("--references", help="curves: PFLlib's series of the same datasets too (see `pflbench import`).")
    ] = False,
    round_: Annotated[
        int | None, typer.Option("--round", "-r", min=0, help="attention: after this round. Default: the last kept.")
    ] = None,
    client: Annotated[int | None, typer.Option(min=0, help="ala-convergence (default: 8), trajectory (default: 4).")] = None,
    select: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="ranks: the round that counts, best, last or mean-last:K. Default: best."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(metavar="POINTS", help="overhead: converged within so many points of the best. Default: 0.5."),
    ] = None,
    surface: Annotated[
        bool, typer.Option("--surface", help="trajectory: compute the loss surface, which takes minutes, and keep it.")
    ] = False,
    width: Annotated[
        str | None,
        typer.Option(
            metavar="WIDTH",
            autocompletion=o.completion(_widths),
            help="one-column (3.3 in), two-column (6.9 in) or inches. Default: as the panels need.",
        ),
    ] = None,
    font_size: Annotated[float, typer.Option("--font-size", metavar="POINTS", help="Of the text, at print size.")] = 7,
    title: Annotated[
        bool, typer.Option(" /--no-title", show_default=False, help="Without titles, for a document with a caption of its own.")
    ] = True,
    legend: Annotated[
        str, typer.Option(metavar="PLACE", autocompletion=o.completion(_legends), help="auto, inside, right, below or none.")
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file. Default: the plot's name, .png.")
    ] = None,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
) -> None:
    """Draw a figure, write it to a file, with its caption in a text file beside it, and print the file's name."""
    from pflbench.report import papermap, style
    from pflbench.report.selection import Filters
    from pflbench.report.style import SUFFIXES

    (asked,) = papermap.of_kind("plot", name)
    name = asked.name
    page = style.PrintPage.of(width, font_size, title, legend)
    names = {"methods": methods, "datasets": datasets, "partitions": partitions, "status": status}
    options: dict[str, Any] = {
        "x": x,
        "band": band,
        "references": references or None,
        "round": round_,
        "client": client,
        "select": select,
        "tolerance": tolerance,
    }
    target = output or Path(f"{asked.printed.lower().replace(' ', '') or name}.png")
    if target.suffix.lower() not in SUFFIXES:
        raise unknown("figure format", target.suffix or target.name, SUFFIXES)
    filters = Filters(methods, datasets, partitions, status, models, clients, rounds, run, where, smoke)
    given = {**names, **options}
    if asked.printed:
        given |= dict(zip(("models", "clients", "rounds", "run", "where"), (models, clients, rounds, run, where), strict=True))
        with style.on(page):
            write_figure(_printed(asked.printed, given, data_dir), target)
        return
    if name == "distribution" and not filters.words:
        with style.on(page):
            drawn = _of_data(given, db, data_dir)
        if drawn is not None:
            write_figure(drawn, target)
            return
    with leading("plot", name, db, data_dir), opened(db) as engine:
        if surface:
            _compute_surface(name, engine, filters, options, data_dir)
        with style.on(page):
            drawing = call(f"plot {name}", PLOTS[name], engine, filters, options)
    if filters.words:
        drawing = replace(drawing, notes=(*drawing.notes, f"Filtered: {filters.words}."))
    write_figure(drawing, target)


def _printed(number: str, given: dict[str, Any], data_dir: Path) -> style.Drawing:
    """A figure of the FedALA paper on data alone, with what it shows there, whatever the database has."""
    from pflbench.report import labels
    from pflbench.report.figures import distribution
    from pflbench.reproduce.goal import goals
    from pflbench.reproduce.show import partitions

    chosen = {option: given.pop(option) for option in ("datasets", "partitions")}
    if wrong := [option for option, value in given.items() if value not in (None, [])]:
        flag = wrong[0].removesuffix("s" if wrong[0] not in ("status", "references", "clients", "rounds") else "")
        raise UserError(f"--{flag} does not belong to {number}, which shows data alone.", "Leave it out.")
    (goal,) = goals(number, **chosen)
    specs = [one.spec for one in goal.planned(data_dir)]
    with data_view() as progress:
        made = partitions(specs, data_dir, progress)
    there = {one.dataset for one in made}
    left_out = dict.fromkeys(labels.label_title(spec.data.label) for spec in specs if spec.data.label not in there)
    drawing = distribution.drawing(made)
    return replace(drawing, notes=(*drawing.notes, *(f"Left out, as its data are not here: {name}." for name in left_out)))


def _of_data(given: dict[str, Any], db: str, data_dir: Path) -> style.Drawing | None:
    """The one figure that needs no run: drawn from data and partition where the database has not stored what is asked for."""
    from pflbench.report.figures import distribution
    from pflbench.report.selection import Filters

    if any(value not in (None, []) for option, value in given.items() if option not in ("datasets", "partitions")):
        return None  # which will be refused
    missing: UserError | None = None
    with opened_if_there(db) as engine:
        if engine is not None:
            try:
                distribution.choose(engine, Filters(datasets=given["datasets"], partitions=given["partitions"]))
            except UserError as nothing:
                missing = nothing
            else:
                return None
    if missing is not None and missing.__cause__ is not None:
        raise missing  # the database cannot be read

    from pflbench.reproduce.show import partitions
    from pflbench.run.plan import Wish, partition_options, plan

    try:
        labels = [partition_options(text) for text in given["partitions"]] or [{}]
    except UserError as no_label:
        raise missing or no_label from None
    asked = [Wish(("local",), tuple(given["datasets"]), data_dir, **options) for options in labels]
    with data_view() as progress:
        made = distribution.drawing(partitions([spec for request in asked for spec in plan(request)], data_dir, progress))
    if given["datasets"]:
        return made
    more = "The FedALA paper's: pflbench reproduce figure6, to figure9. Others: -d NAME -p 'Dir(0.1)', also Pathological(2), IID."
    return replace(made, notes=(*made.notes, more))


def _compute_surface(name: str, engine: Engine, filters: Filters, options: dict[str, Any], data_dir: Path) -> None:
    """The one figure whose numbers the database does not have: they are computed here, and stored."""
    if name != "trajectory":
        raise UserError(f"--surface does not belong to `pflbench plot {name}`.", "Leave it out.")
    from pflbench.reproduce.show import keep_surface

    paths = call(
        "plot trajectory", replace(PLOTS[name], module=f"{PLOTS[name].module}.numbers"), engine, filters, options, "paths"
    )
    keep_surface(engine, paths, data_dir)
