"""`pflbench reproduce`: trains the runs of a paper's table or figure, then shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.checkup import note_unchecked
from pflbench.cli.console import duration, error, message, print_json, print_records, print_table, say
from pflbench.cli.data import fetch_missing
from pflbench.cli.db import opened, opened_or_empty
from pflbench.cli.help import HelpAll
from pflbench.cli.progress import data_view
from pflbench.cli.reports import FILTERS, Format, one_at_a_time, table_format, write_figure, write_table
from pflbench.cli.run import execution, follow_client
from pflbench.cli.train_runs import Jobs, KeepGoing, Limit, train_all
from pflbench.errors import UserError, unknown
from pflbench.report import papermap

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.reproduce.goal import Goal, Wanted
    from pflbench.reproduce.progress import Outlook
    from pflbench.run.execution import Execution


SMALL = "of a few seconds"  # `timed` measures all others
MAP = f"The papers' tables and figures, and their names:\n\n{papermap.plain()}"


@o.taking(
    which={name: FILTERS[name] for name in ("methods", "partitions")},
    executed=o.without(o.EXECUTION, "save_artifacts_every", "trajectory", "force"),
)
def reproduce(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=papermap.names,
            show_default=False,
            help="table4 or figure4 of the FedALA paper, or a name of `table` or `plot`; table:NAME or plot:NAME for one of two "
            "with the same name. Without a name: the progress of each.",
        ),
    ] = "",
    scale: Annotated[
        Literal["full", "quick", "smoke"],
        typer.Option(
            help="full: the paper's protocol with five seeds. quick: its settings with 20 rounds and one seed. smoke: a tiny "
            "stand-in on the digits dataset, about a minute."
        ),
    ] = "full",
    which: o.Given,
    datasets: Annotated[
        list[str],
        typer.Option(
            "--dataset",
            "-d",
            metavar="NAME[=DATA]",
            autocompletion=o.dataset_names,
            help="Only these; repeatable. cifar10=folder:PATH replaces a dataset by other data, named as in `run -d`; the result "
            "says so.",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[str | None, typer.Option(metavar="LIST", help="Instead of the scale's seeds: 0-4 or 0,2,5.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list finished and missing runs, with the time and the commands.")
    ] = False,
    format: Format = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="For the figure a .png, .pdf or .svg file, for the table .txt, .md, .tex, .csv or .json."
        ),
    ] = None,
    executed: o.Given,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    download: o.Download = True,
    jobs: Jobs = 1,
    keep_going: KeepGoing = False,
    limit: Limit = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No list and no progress on stderr.")] = False,
    as_json: o.Json = False,
    help_all: HelpAll = False,
) -> None:
    """Make a table or figure of the papers: list the runs that it needs, train the missing ones, then show it.

    Finished runs of earlier commands are used, and interrupted ones resumed. The result contains only runs of its own scale.
    """
    from pflbench.reproduce.forecast import timed
    from pflbench.reproduce.goal import goals

    if not name:
        _overview(scale, db, data_dir, as_json)
        return
    asked = goals(name, scale, datasets=datasets, **which)
    how = execution(executed)
    form: str | None = "json" if as_json and not dry_run else format
    if len(asked) > 1:
        one_at_a_time(name, papermap.resolve(name), form, output)
    targets = [_targets(one, form, output) for one in asked]
    wanted = [one.wanted(data_dir, seeds) for one in asked]
    if dry_run:
        with opened_or_empty(db) as results:
            looked = [_look(one, runs, results, data_dir, quiet) for one, runs in zip(asked, wanted, strict=True)]
            _list([timed(outlook, results, data_dir, how, message) for outlook in looked], as_json)
        return

    whole = True
    # A figure of data alone makes no database.
    with opened_or_empty(db) if all(one.untrained for one in asked) else opened(db, create=True) as results:
        for one, runs, target in zip(asked, wanted, targets, strict=True):
            outlook = _look(one, runs, results, data_dir, quiet)
            if outlook.lacking:
                fetch_missing(outlook.lacking, [], data_dir, download, quiet)
                outlook = _look(one, runs, results, data_dir, quiet)
            if not _reported(outlook.require_something):
                whole = False
                continue
            if not quiet:
                _tell(timed(outlook, results, data_dir, how, message), err=True)
            if runs:
                whole &= _make(outlook, results, data_dir, how, jobs, quiet, keep_going=keep_going, limit=limit)
                limit = None if limit is None else max(0, limit - len(outlook.ahead))
            after = _look(one, runs, results, data_dir, quiet)
            whole &= _show(after, results, data_dir, how.device, target, quiet) and not after.diverged
    if not whole:
        raise typer.Exit(2)


def _overview(scale: str, db: str, data_dir: Path, as_json: bool) -> None:
    """Every table and figure of the papers: its command, its runs, the time left, on stdout."""
    from pflbench.reproduce.progress import overview

    with opened_or_empty(db) as results:
        found = overview(results, scale, data_dir)
    if as_json:
        print_json(found)
        return
    records = [
        {
            "in the paper": ", ".join(filter(None, (one["paper"], one["number"]))),
            "shows": one["shows"],
            "command": one["command"],
            "runs": f"{one['there']}/{one['needed']}",
            "time left": _left(one["seconds"], one["unknown"]),
            "state": one["state"],
        }
        for one in found
    ]
    print_records(records)
    for sentence in papermap.DRAWINGS:
        message(sentence)
    message("runs: finished / needed. time left: by rounds in this database; unknown: it has none of such runs.")
    message("--scale quick or smoke needs fewer runs and rounds.")


def _targets(goal: Goal, format: str | None, output: Path | None) -> tuple[str, Path | None, Path]:
    """The table's format and file (None: stdout), and the figure's file. Raises UserError if format or file do not fit."""
    from pflbench.report.style import SUFFIXES

    if format is not None and goal.table is None:
        raise UserError(f"There is no table '{goal.name}' to format.", "Leave out --format and --json, or list with --dry-run.")
    # Another scale gives another figure.
    own = "" if goal.scale.name == "full" else f"-{goal.scale.name}"
    figure = Path(f"{goal.printed.lower().replace(' ', '') or goal.name}{own}.png")
    if output is None or (drawn := output.suffix.lower() in SUFFIXES and goal.figure is not None):
        return table_format(format, None), None, output or figure
    if goal.table is None and not drawn:
        raise unknown("figure format", output.suffix or output.name, SUFFIXES)
    return table_format(format, output), output, figure


def _look(goal: Goal, wanted: Sequence[Wanted], engine: sqlalchemy.Engine, data_dir: Path, quiet: bool) -> Outlook:
    from pflbench.reproduce.progress import look

    with data_view(quiet) as progress:
        return look(goal, wanted, engine, data_dir, progress)


def _list(outlooks: Sequence[Outlook], as_json: bool) -> None:
    """Prints the answer of --dry-run; in JSON a list if the name stands for several tables."""
    from pflbench.reproduce.goal import by_hand

    commands = [by_hand([one.wanted for one in outlook.progress]) for outlook in outlooks]
    if as_json:
        documents = [{**outlook.document(), "commands": own} for outlook, own in zip(outlooks, commands, strict=True)]
        print_json(documents if len(documents) > 1 else documents[0])
        return
    for outlook, own in zip(outlooks, commands, strict=True):
        _tell(outlook, err=False)
        if own:
            say("The same by hand:", *own, sep="\n  ")


def _tell(outlook: Outlook, err: bool) -> None:
    """Prints finished and missing runs, obstacles, and the time."""
    from pflbench.reproduce.progress import STATES, Tally

    tell = message if err else say
    tell(f"{outlook.goal.name}: {outlook.goal.source}. {outlook.goal.note}")
    rows = [
        (setting, sum(of.counts.values()), *of.counts.values(), _left(of.seconds, of.unknown, SMALL))
        for setting, of in outlook.parts().items()
    ]
    if rows:
        print_table(("setting", "runs", *STATES, "time"), rows, err=err)
    for line in outlook.remarks():
        tell(line)
    ahead = Tally.of(outlook.ahead)
    if outlook.goal.untrained:
        tell("It needs no run, only data and partition.")
    elif outlook.ahead:
        tell(f"To run: {len(outlook.ahead)}. Time: {_left(ahead.seconds, ahead.unknown, SMALL)}.")
    else:
        left = any(one.rounds_left for one in outlook.progress)
        tell("None of the missing runs can be trained here." if left else "No run is missing.")


def _left(seconds: float, unknown: int, word: str = "unknown") -> str:
    """The known time, and the number of runs without one. word: for these."""
    known = f"about {duration(seconds)}" if seconds else ""
    return " + ".join(filter(None, (known, f"{unknown} {word}" if unknown else "")))


def _make(
    outlook: Outlook,
    results: sqlalchemy.Engine,
    data_dir: Path,
    how: Execution,
    jobs: int | None,
    quiet: bool,
    *,
    keep_going: bool,
    limit: int | None,
) -> bool:
    """Trains the missing runs. False if one diverged, which is reported, or failed."""
    from pflbench.run.follow import parse
    from pflbench.store.failures import patiently
    from pflbench.store.sweeps import last_ended
    from pflbench.sweep.choose_executor import ExecutorOptions, at_a_time
    from pflbench.sweep.run_queue import RunQueue

    ahead = {one.wanted.spec.key: one for one in outlook.ahead[:limit]}
    specs = [one.wanted.spec for one in ahead.values()]
    followed_runs = [one.wanted for one in ahead.values() if "trajectory" in one.wanted.options]
    if followed_runs:
        follow_client(followed_runs[0].options["trajectory"], [one.spec for one in followed_runs], data_dir)
    note_unchecked(how, quiet)

    def keeping(options: dict[str, Any]) -> Execution:
        follow = parse(options["trajectory"]) if "trajectory" in options else None
        every = options.get("save_artifacts_every", 0)
        return replace(how, save_artifacts_every=every, follow=follow, scale=outlook.goal.scale.name)

    queue = RunQueue(
        tuple(specs),
        results.url,
        data_dir,
        how,
        own={key: keeping(one.wanted.options) for key, one in ahead.items()},
        repeated=patiently(lambda: last_ended(results, [key for key, one in ahead.items() if one.anew])),
        keep_going=keep_going,
    )
    places = at_a_time(ExecutorOptions(jobs=jobs), specs, data_dir, how) or 1
    return train_all(queue, results, places, quiet)


def _show(
    outlook: Outlook, results: sqlalchemy.Engine, data_dir: Path, device: str, targets: tuple[str, Path | None, Path], quiet: bool
) -> bool:
    """Shows the table and the figure, if it has them. False if one cannot be made, which is reported."""
    from pflbench.reproduce import show

    goal, (form, table, figure) = outlook.goal, targets

    def tabulate() -> None:
        write_table(show.grid(goal, results, outlook.runs(tabled=True)), form, table)

    def draw() -> None:
        with data_view(quiet) as progress:
            write_figure(show.drawing(goal, results, outlook.runs(), data_dir, device, progress), figure)

    whole = goal.table is None or _reported(tabulate)
    return (goal.figure is None or _reported(draw)) and whole


def _reported(make: Callable[[], None]) -> bool:
    """Reports an error, since another part of the result may be possible. False if there was one."""
    try:
        make()
    except UserError as failed:
        error(failed)
        return False
    return True
