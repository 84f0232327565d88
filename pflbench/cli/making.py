"""The runs of a command are made: one after another in this process, or several at a time by others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench import interrupts
from pflbench.cli.console import error, message
from pflbench.cli.progress import sweep_view
from pflbench.errors import Unreachable, Vanished

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.sweep.conduct import Course
    from pflbench.sweep.jobs import Job, Steps, Workers


def runs_at_a_time(text: str | int) -> int | None:
    if text == "auto":
        return None
    if not str(text).isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"'{text}' is neither auto nor a number of runs, at least 1")
    return int(text)


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="auto|N",
        parser=runs_at_a_time,
        help="Runs at a time. auto: one for each core, or each GPU, as memory allows. 1: one after another.",
    ),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", "-k", help="Make the others when a run fails.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many runs, this time.")]


def at_a_time(jobs: int | None, ahead: Sequence[RunSpec], data_dir: Path, how: Execution) -> int:
    """How many of the runs ahead are made at a time. jobs: as many as asked for; None: as many as there is room for."""
    if len(ahead) < 2 or jobs == 1:
        return 1
    from pflbench.sweep.room import places

    return places(ahead, data_dir, how) if jobs is None else min(jobs, len(ahead))


def make_all(
    found: Course,
    results: sqlalchemy.Engine,
    waiting: Iterator[Job],
    how: Execution,
    places: int,
    quiet: bool,
    follow: Callable[[Job, Steps], Steps],
    *,
    keep_going: bool,
    then: Callable[[Course], None] = lambda _: None,
) -> bool:
    """Makes the runs of `run` and `reproduce`. False if one did not finish, which is told. Ctrl-C and the like end the command.

    places: how many at a time; 1: in this process, where `follow` shows every round and errors end the command unless
    keep_going. then: called whenever jobs have ended.
    """
    from pflbench.sweep.jobs import Here
    from pflbench.sweep.processes import Processes
    from pflbench.sweep.room import devices_for

    tell_checkpoints(results, how)
    workers: Workers
    shown: AbstractContextManager[Callable[[Course], None]]
    if places == 1:
        workers, shown = Here(results, follow, keep_going), nullcontext(lambda _: None)
    else:
        workers, shown = Processes(places, devices_for(how)), sweep_view(found, results, quiet)

    whole = made(found, workers, waiting, shown, then, keep_going=keep_going)
    # What diverged here was told when it did.
    told = tell_errors(found, ("failed", "elsewhere") if places == 1 else ("failed", "elsewhere", "diverged"))
    if not whole or found.count("interrupted"):
        try:
            _tell_kept(found, results, how)
        except (Unreachable, Vanished):
            if not told:
                raise
    if not whole:
        raise typer.Exit(interrupts.exit_code())
    if found.stopped and found.ahead:
        message(f"Stopped: {found.stopped}. Left: {len(found.ahead)}.")
    return all(outcome.state == "finished" for outcome in found.ended.values())


def made(
    found: Course,
    workers: Workers,
    waiting: Iterator[Job],
    shown: AbstractContextManager[Callable[[Course], None]],
    then: Callable[[Course], None] = lambda _: None,
    *,
    keep_going: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> bool:
    """Makes what is ahead and shows it at every look. False after Ctrl-C and the like: what was under way has its checkpoints."""
    from pflbench.sweep.conduct import conduct

    try:
        steps = conduct(found, workers, waiting, keep_going=keep_going, cancelled=cancelled)
        with closing(workers), shown as look, closing(steps):
            for state in steps:
                look(state)
                then(state)
    except KeyboardInterrupt:
        return False
    return True


def tell_checkpoints(results: sqlalchemy.Engine, how: Execution) -> None:
    """Where they lie, if the user should know. Raises UserError where they cannot."""
    from pflbench.run.places import note, place_of

    place_of(results.url, how.checkpoints)
    text = note(results.url, how.checkpoints)
    if text is not None:
        message(f"Note: {text}")


def tell_errors(found: Course, states: Collection[str]) -> list[str]:
    """Why runs that ended in these states did, and those that something else than the user interrupted: each reason once."""
    ended = (one for one in found.ended.values() if one.state in states or (one.state == "interrupted" and one.message))
    told = list(dict.fromkeys(outcome.message for outcome in ended))
    for text in told:
        error(*text.split("\n", 1))
    return told


def _tell_kept(found: Course, results: sqlalchemy.Engine, how: Execution) -> None:
    """Says from where the same command goes on: of each run that was under way, by its checkpoint."""
    from pflbench.run.checkpoint import reached
    from pflbench.store import runs

    keys = [outcome.key for outcome in found.ended.values() if outcome.state == "interrupted"]
    newest = [runs.newest(results, key) for key in (*keys, *(spec.key for spec in found.under_way))]
    left = [run for run in newest if run is not None and not run.ended]
    reaches = {run.id: reached(run, results.url, how.checkpoints) for run in left}
    kept = [f"run {run} up to {last}" for run, last in reaches.items() if last is not None]
    lost = [f"{run}" for run, last in reaches.items() if last is None]
    told = ["Interrupted."]
    if len(kept) == 1:
        told.append(f"{kept[0].replace('run', 'Run').replace(' up', ' keeps its rounds up')}.")
    elif kept:
        told.append(f"Rounds that are kept: {', '.join(kept)}.")
    if kept:
        told.append("The same command goes on from there.")
    if lost:
        told.append(f"Without a checkpoint: run {', '.join(lost)}, which the same command begins anew.")
    if not reaches:
        told.append("The same command goes on." if found.ended else "Nothing had begun.")
    message(" ".join(told))
