"""`pflbench reproduce`: trains the runs of a paper's table or figure, then shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.checkup import note_unchecked
from pflbench.cli.console import command_line, duration, error, message, print_json, print_table, say
from pflbench.cli.db import opened, opened_if_there
from pflbench.cli.making import Jobs, KeepGoing, Limit, make_all
from pflbench.cli.progress import bars, followed
from pflbench.cli.reports import FILTERS, Format, one_at_a_time, table_format, write_figure, write_table
from pflbench.cli.run import execution, follow_client
from pflbench.errors import UserError, unknown
from pflbench.report import papermap

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.reproduce.goal import Goal, Wanted
    from pflbench.reproduce.outlook import Outlook
    from pflbench.reproduce.progress import Tally
    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.sweep.run_queue import Steps


MAP = f"The papers' tables and figures, and their names:\n\n{papermap.plain()}"


def _names() -> list[str]:
    return list(papermap.names())


@o.taking(
    which={name: FILTERS[name] for name in ("methods", "partitions")},
    executed={
        name: option for name, option in o.EXECUTION.items() if name not in ("save_artifacts_every", "trajectory", "force")
    },
)
def reproduce(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=o.completion(_names),
            show_default=False,
            help="table4 or figure4 of the FedALA paper, or a name of `table` or `plot`; table:NAME or plot:NAME for one of two "
            "with the same name. Without a name: the progress of each.",
        ),
    ] = "",
    scale: Annotated[
        Literal["full", "quick", "smoke"],
        typer.Option(
            help="full: the paper's protocol with five seeds. quick: its settings with 20 rounds and one seed. smoke: a tiny "
            "stand-in on the digits dataset, about a minute.",
        ),
    ] = "full",
    which: o.Given,
    datasets: Annotated[
        list[str],
        typer.Option(
            "--dataset",
            "-d",
            metavar="NAME[=DATA]",
            autocompletion=o.completion(o.dataset_names),
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
    jobs: Jobs = 1,
    keep_going: KeepGoing = False,
    limit: Limit = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No list and no progress on stderr.")] = False,
    as_json: o.Json = False,
) -> None:
    """Make a table or figure of the papers: list the runs that it needs, train the missing ones, then show it.

    Finished runs of earlier commands are used, and interrupted ones resumed. The result contains only runs of its own scale.
    """
    from pflbench.reproduce.goal import goals

    if not name:
        _overview(scale, db, data_dir, as_json)
        return
    asked = goals(name, scale, datasets=datasets, **which)
    how = execution(executed)
    how = replace(how, command=command_line(how.record_host))
    form: str | None = "json" if as_json and not dry_run else format
    if len(asked) > 1:
        one_at_a_time(name, papermap.resolve(name), form, output)
    targets = [_targets(one, form, output) for one in asked]
    wanted = [one.wanted(data_dir, seeds) for one in asked]
    if dry_run:
        with opened_if_there(db) as results:
            _list([_look(one, runs, results, data_dir, quiet) for one, runs in zip(asked, wanted, strict=True)], as_json)
        return

    whole = True
    # A figure of data alone makes no database.
    with opened_if_there(db) if all(one.untrained for one in asked) else opened(db, create=True) as results:
        for one, runs, target in zip(asked, wanted, targets, strict=True):
            outlook = _look(one, runs, results, data_dir, quiet)
            with _reported(len(asked) > 1) as possible:
                outlook.require_something()
            if not possible:
                whole = False
                continue
            if not quiet:
                _tell(outlook, message, err=True)
            if results is not None and runs:
                whole &= _make(outlook, results, data_dir, how, jobs, quiet, keep_going=keep_going, limit=limit)
                limit = None if limit is None else max(0, limit - len(outlook.ahead))
            after = _look(one, runs, results, data_dir, quiet)
            whole &= _show(after, results, data_dir, how.device, target, quiet)
            whole &= not any(one.state == "diverged" for one in after.progress)
    if not whole:
        raise typer.Exit(2)


def _overview(scale: str, db: str, data_dir: Path, as_json: bool) -> None:
    """Every table and figure of the papers: its command, its runs, the time left, on stdout."""
    from pflbench.reproduce.overview import overview

    with opened_if_there(db) as results:
        found = overview(results, scale, data_dir)
    if as_json:
        print_json([one.record() for one in found])
        return
    rows = [
        (
            one.exhibit.title,
            one.exhibit.shows,
            one.command,
            f"{one.there}/{one.needed}",
            _left(one.tally),
            one.state,
        )
        for one in found
    ]
    print_table(("in the paper", "shows", "command", "runs", "time left", "state"), rows)
    for paper, why in papermap.DRAWINGS.items():
        message(f"{paper}: {why}.")
    message(
        "runs: finished / needed. time left: by rounds in this database. --scale quick: 20 rounds, one seed; smoke: about a "
        "minute, on the digits dataset."
    )


@dataclass(frozen=True)
class _Targets:
    """The files of the result. table None: stdout."""

    format: str
    table: Path | None
    figure: Path


def _targets(goal: Goal, format: str | None, output: Path | None) -> _Targets:
    """Raises UserError before any run if format or file do not fit the result."""
    from pflbench.report.style import SUFFIXES

    if format is not None and goal.table is None:
        raise UserError(f"There is no table '{goal.name}' to format.", "Leave out --format and --json, or list with --dry-run.")
    # Another scale gives another figure.
    own = "" if goal.scale.name == "full" else f"-{goal.scale.name}"
    name = goal.printed.lower().replace(" ", "") or goal.name
    figure = Path(f"{name}{own}.png")
    if output is None or (drawn := output.suffix.lower() in SUFFIXES and goal.figure is not None):
        return _Targets(table_format(format, None), None, output or figure)
    if goal.table is None and not drawn:
        raise unknown("figure format", output.suffix or output.name, SUFFIXES)
    return _Targets(table_format(format, output), output, figure)


def _look(goal: Goal, wanted: Sequence[Wanted], engine: sqlalchemy.Engine | None, data_dir: Path, quiet: bool) -> Outlook:
    from pflbench.reproduce.outlook import look

    with bars(quiet) as progress:
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
        _tell(outlook, say, err=False)
        if own:
            say("The same by hand:", *own, sep="\n  ")


def _tell(outlook: Outlook, say: Callable[[str], None], err: bool) -> None:
    """Prints finished and missing runs, obstacles, and the time."""
    from pflbench.reproduce.progress import STATES
    from pflbench.reproduce.show import note

    say(f"{outlook.goal.name}: {outlook.goal.source}. {note(outlook.goal)}")
    parts = outlook.parts()
    rows = [(setting, sum(of.counts.values()), *of.counts.values(), _left(of)) for setting, of in parts.items()]
    if rows:
        print_table(("setting", "runs", *STATES, "time"), rows, err=err)
    for line in outlook.remarks():
        say(line)
    say(_ahead(outlook))


def _left(of: Tally) -> str:
    """The known time, and the number of runs without one."""
    known = duration(of.seconds) if of.seconds else ""
    return " + ".join(text for text in (known, f"{of.unknown} unknown" if of.unknown else "") if text)


def _ahead(outlook: Outlook) -> str:
    if outlook.goal.untrained:
        return "It needs no run, only data and partition."
    runs = len(outlook.ahead)
    if not runs:
        left = any(one.rounds_left for one in outlook.progress)
        return "None of the missing runs can be trained here." if left else "No run is missing."
    unknown = sum(outlook.unknown.values())
    known = f" about {duration(outlook.seconds)} for {runs - unknown}" if runs > unknown else ""
    why = "; ".join(f"{reason} ({number})" for reason, number in outlook.unknown.items())
    parts = [text for text in (known, f" unknown for {unknown}: {why}" if unknown else "") if text]
    return f"To run: {runs}. Time:{','.join(parts)}."


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
    from pflbench.store.failures import patiently
    from pflbench.store.sweeps import last_ended
    from pflbench.sweep.choose_executor import ExecutorOptions, at_a_time
    from pflbench.sweep.run_queue import RunQueue

    ahead = {one.wanted.spec.key: one for one in outlook.ahead[:limit]}
    specs = [one.wanted.spec for one in ahead.values()]
    followed_runs = [one.wanted for one in ahead.values() if one.wanted.keeps.follow is not None]
    if followed_runs:
        follow_client(followed_runs[0].options["trajectory"], [one.spec for one in followed_runs], data_dir)
    note_unchecked(how, quiet)
    begun, shown = time.monotonic(), followed(specs, quiet)
    weights = dict(zip(ahead, outlook.weights[:limit], strict=True))
    left = dict(weights)

    def keeping(key: str) -> Execution:
        keeps = ahead[key].wanted.keeps
        return replace(how, save_artifacts_every=keeps.save_artifacts_every, follow=keeps.follow, scale=outlook.goal.scale.name)

    def follow(pack: Sequence[RunSpec], steps: Steps) -> Steps:
        if not quiet:
            message(series_title(len(weights) - len(left), len(pack), weights.values(), left.values(), time.monotonic() - begun))
        for spec in pack:
            del left[spec.key]
        return shown(pack, steps)

    queue = RunQueue(
        tuple(specs),
        results.url.render_as_string(hide_password=False),
        data_dir,
        how,
        own={key: keeping(key) for key in ahead},
        repeated=patiently(lambda: last_ended(results, [key for key, one in ahead.items() if one.anew])),
        keep_going=keep_going,
    )
    places = at_a_time(ExecutorOptions(jobs=jobs), specs, data_dir, how) or 1
    return make_all(queue, results, places, quiet, follow)


def series_title(over: int, together: int, weights: Collection[float], left: Collection[float], seconds: float) -> str:
    """The title of the next runs, with the time left. weights: of all runs, left: of the remaining, as shares of the time."""
    which = f"Run {over + 1}" if together == 1 else f"Runs {over + 1} to {over + together}"
    done = sum(weights) - sum(left)
    ahead = f", about {duration(seconds * sum(left) / done)} left" if done else ""
    return f"{which} of {len(weights)}{ahead}"


def _show(
    outlook: Outlook, results: sqlalchemy.Engine | None, data_dir: Path, device: str, targets: _Targets, quiet: bool
) -> bool:
    """Shows the table and the figure, if it has them. False if one cannot be made, which is reported."""
    from pflbench.reproduce import show

    goal, runs, whole = outlook.goal, outlook.runs, True
    if goal.untrained:
        with _reported() as made, bars(quiet) as progress:
            write_figure(show.noted(goal, show.data_drawing(goal, data_dir, progress)), targets.figure)
        return bool(made)
    assert results is not None
    if goal.table is not None:
        with _reported() as made:
            write_table(show.grid(goal, results, outlook.tabled), targets.format, targets.table)
        whole &= bool(made)
    if goal.figure is not None:
        with _reported() as made:
            show.compute_surface(goal, results, runs, data_dir, device)
            write_figure(show.drawing(goal, results, runs), targets.figure)
        whole &= bool(made)
    return whole


@contextmanager
def _reported(goes_on: bool = True) -> Iterator[list[bool]]:
    """Reports an error, since another part of the result may be possible; the list is then empty.

    goes_on: whether there is another part; else the error is raised.
    """
    made: list[bool] = []
    try:
        yield made
        made.append(True)
    except UserError as failed:
        if not goes_on:
            raise
        error(failed.message, failed.hint)
