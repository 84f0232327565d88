"""`pflbench reproduce`: the runs that a table or figure needs, then the table and the figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import command_line, duration, error, message, print_json, print_table
from pflbench.cli.db import opened
from pflbench.cli.progress import Series, data_view, follow, series_view
from pflbench.cli.reports import MethodsFilter, PartitionsFilter, write_figure, write_table
from pflbench.cli.run import execution, follow_client
from pflbench.errors import UserError, unknown

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.execution import Execution
    from pflbench.reproduce.goal import Goal, Keeps, Wanted
    from pflbench.reproduce.outlook import Outlook, Part
    from pflbench.reproduce.standing import Standing
    from pflbench.spec import RunSpec


def _names() -> list[str]:
    from pflbench.report import PLOTS, TABLES

    return list(dict.fromkeys((*TABLES, *PLOTS)))


def _scales() -> list[str]:
    from pflbench.reproduce.scales import SCALES

    return list(SCALES)


def _formats() -> list[str]:
    from pflbench.report.render import FORMATS

    return list(FORMATS)


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=o.completion(_names), help="A table or figure; both if both bear it.")
    ],
    scale: Annotated[
        str,
        typer.Option(
            metavar="full|quick|smoke",
            autocompletion=o.completion(_scales),
            help="full: the paper's protocol, five seeds. quick: its settings, but 20 rounds and one seed. smoke: about a minute "
            "on the embedded digits.",
        ),
    ] = "full",
    methods: MethodsFilter = [],  # noqa: B006
    datasets: Annotated[
        list[str],
        typer.Option(
            "--dataset",
            "-d",
            metavar="NAME[=DATA]",
            autocompletion=o.completion(o.dataset_names),
            help="Only these; repeatable. cifar10=folder:PATH runs on other data in its place, as `run -d` names them: "
            "the result says so.",
        ),
    ] = [],  # noqa: B006
    partitions: PartitionsFilter = [],  # noqa: B006
    seeds: Annotated[str | None, typer.Option(metavar="LIST", help="In place of the scale's: 0-4 or 0,2,5.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what is there and what is missing, with the time and the commands.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            autocompletion=o.completion(_formats),
            help="Of the table: text, markdown, latex, csv or json.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .png, .pdf or .svg file for the figure; any other for the table."),
    ] = None,
    device: o.Device = "auto",
    engine: o.Engine = "auto",
    workers: o.Workers = None,
    chunk: o.Chunk = None,
    pack: o.Pack = None,
    capture: o.Capture = "auto",
    convolution: o.Convolution = "auto",
    checkpoint_every: o.CheckpointEvery = 30.0,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No list and no progress on stderr.")] = False,
    as_json: o.Json = False,
) -> None:
    """Make a table or figure of the papers: list the runs that it needs, make those that are missing, then show it.

    It goes on where it was interrupted, and uses what earlier commands made. Nothing but its own runs is in the result.
    """
    from pflbench.reproduce.goal import goal

    asked = goal(name, scale, methods=methods, datasets=datasets, partitions=partitions)
    how = execution(device, engine, workers, chunk, pack, capture, convolution)
    targets = _targets(asked, "json" if as_json and not dry_run else format, output)
    wanted = asked.wanted(data_dir, seeds)
    if dry_run:
        with _read(db) as results:
            _list(_look(asked, wanted, results, data_dir, quiet), as_json)
        return

    with opened(db, create=True) as results:
        outlook = _look(asked, wanted, results, data_dir, quiet)
        outlook.require_something()
        if not quiet:
            _tell(outlook, message, err=True)
        _make(outlook, results, data_dir, how, checkpoint_every, quiet)
        after = _look(asked, wanted, results, data_dir, quiet)
        whole = _show(after, results, data_dir, device, targets)
    if not whole or any(one.state == "diverged" for one in after.standings):
        raise typer.Exit(2)


@dataclass(frozen=True)
class _Targets:
    """Where the result goes. table None: stdout."""

    format: str
    table: Path | None
    figure: Path


def _targets(goal: Goal, format: str | None, output: Path | None) -> _Targets:
    """Raises UserError for what does not fit the result, before anything is run for it."""
    from pflbench.report.render import FORMATS
    from pflbench.report.style import SUFFIXES

    if format is not None and goal.table is None:
        raise UserError(f"There is no table '{goal.name}' to format.", "Leave out --format and --json, or list with --dry-run.")
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    # Of another scale it is another figure.
    own = "" if goal.scale.name == "full" else f"-{goal.scale.name}"
    figure = Path(f"{goal.name}{own}.png")
    if output is None or (drawn := output.suffix.lower() in SUFFIXES and goal.figure is not None):
        return _Targets(format or "text", None, output or figure)
    if goal.table is None and not drawn:
        raise unknown("figure format", output.suffix or output.name, SUFFIXES)
    return _Targets(format or "text", output, figure)


@contextmanager
def _read(db: str) -> Iterator[sqlalchemy.Engine | None]:
    """The database, None where there is none yet."""
    from sqlalchemy import make_url

    from pflbench.store.db import to_url
    from pflbench.store.failures import sqlite_path

    path = sqlite_path(make_url(to_url(db)))
    if path is not None and not path.exists():
        yield None
        return
    with opened(db) as engine:
        yield engine


def _look(goal: Goal, wanted: Sequence[Wanted], engine: sqlalchemy.Engine | None, data_dir: Path, quiet: bool) -> Outlook:
    from pflbench.reproduce.outlook import look

    with data_view(quiet) as progress:
        return look(goal, wanted, engine, data_dir, progress)


def _list(outlook: Outlook, as_json: bool) -> None:
    """The answer of --dry-run, on stdout."""
    from pflbench.reproduce.goal import by_hand

    commands = by_hand([one.wanted for one in outlook.standings])
    if as_json:
        print_json({**outlook.document(), "commands": commands})
        return
    _tell(outlook, print, err=False)
    print("The same by hand:", *commands, sep="\n  ")


def _tell(outlook: Outlook, say: Callable[[str], None], err: bool) -> None:
    """What is there, what is missing, what stands in the way, how long it will take."""
    from pflbench.reproduce.show import note

    say(f"{outlook.goal.name}: {outlook.goal.source}. {note(outlook.goal)}")
    states = list(outlook.parts()[0].counts) if outlook.standings else []
    rows = [(part.setting, sum(part.counts.values()), *part.counts.values(), _time(part)) for part in outlook.parts()]
    if rows:
        print_table(("setting", "runs", *states, "time"), rows, err=err)
    for line in outlook.remarks():
        say(line)
    say(_ahead(outlook))


def _time(part: Part) -> str:
    known = duration(part.seconds) if part.seconds else ""
    return " + ".join(text for text in (known, f"{part.unknown} unknown" if part.unknown else "") if text)


def _ahead(outlook: Outlook) -> str:
    runs = len(outlook.ahead)
    if not runs:
        left = any(one.rounds_left for one in outlook.standings)
        return "Nothing of what is left can be run here." if left else "Nothing is left to run."
    unknown = sum(outlook.unknown.values())
    known = f" about {duration(outlook.seconds)} for {runs - unknown}" if runs > unknown else ""
    why = "; ".join(f"{reason} ({number})" for reason, number in outlook.unknown.items())
    parts = [text for text in (known, f" unknown for {unknown}: {why}" if unknown else "") if text]
    return f"To run: {runs}. Time:{','.join(parts)}."


def _make(
    outlook: Outlook, results: sqlalchemy.Engine, data_dir: Path, how: Execution, checkpoint_every: float, quiet: bool
) -> None:
    """The missing runs, one after another or packed. One that diverges is reported, and the others go on."""
    from pflbench.packing import execute_pack, packs

    followed = [one.wanted for one, _ in outlook.ahead if one.wanted.keeps.follow is not None]
    if followed:
        follow_client(followed[0].options["trajectory"], [one.spec for one in followed], data_dir)
    series, places = Series(outlook.weights), {one.wanted.spec.key: place for place, (one, _) in enumerate(outlook.ahead)}

    def standing(spec: RunSpec) -> Standing:
        return outlook.ahead[places[spec.key]][0]

    def made(spec: RunSpec) -> tuple[Keeps, bool]:
        return standing(spec).wanted.keeps, standing(spec).anew

    ahead = [one.wanted.spec for one, _ in outlook.ahead]
    for together in packs(ahead, results, data_dir, how, force=True, also_alike=made):
        (keeps, anew), names = made(together[0]), [standing(spec).wanted.name for spec in together]
        keeping = replace(how, observe_every=keeps.observe_every, follow=keeps.follow)
        options: dict[str, Any] = {"force": anew, "checkpoint_every": checkpoint_every, "command": command_line()}
        series.begin(*(places[spec.key] for spec in together))
        follow(names, execute_pack(together, results, data_dir, keeping, **options), series_view(names, quiet, series))


def _show(outlook: Outlook, results: sqlalchemy.Engine, data_dir: Path, device: str, targets: _Targets) -> bool:
    """The table and the figure, as far as there are any. False where one of them cannot be made, which is said."""
    from pflbench.reproduce import show

    goal, runs, whole = outlook.goal, outlook.runs, True
    if goal.table is not None:
        with _reported() as made:
            write_table(show.grid(goal, results, runs), targets.format, targets.table)
        whole &= bool(made)
    if goal.figure is not None:
        with _reported() as made:
            show.compute_surface(goal, results, runs, data_dir, device)
            write_figure(show.drawing(goal, results, runs), targets.figure)
        whole &= bool(made)
    return whole


@contextmanager
def _reported() -> Iterator[list[bool]]:
    """Says what went wrong, since the other half of the result may be possible. The list is empty then."""
    made: list[bool] = []
    try:
        yield made
        made.append(True)
    except UserError as failed:
        error(failed.message, failed.hint)
