"""Trains the runs of a command, one after another in this process or several at a time by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench import interrupts
from pflbench.cli.console import error, message
from pflbench.cli.progress import sweep_view
from pflbench.errors import Occupied, Unreachable, UserError, Vanished

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.store.sweeps import SweepState
    from pflbench.sweep.run_jobs import Workers
    from pflbench.sweep.run_queue import Follow, RunQueue


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
        help="Runs at a time. auto: one for each core or GPU, as memory allows. 1: one after another.",
    ),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", "-k", help="Continue with the others when a run fails.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Train at most so many runs now.")]


def make_all(
    queue: RunQueue,
    results: sqlalchemy.Engine,
    places: int,
    quiet: bool,
    follow: Follow,
    then: Callable[[SweepState], None] = lambda state: None,
) -> bool:
    """Trains the runs of `run` and `reproduce`. False if a run did not finish; the reason is printed. Signals end the command.

    places: runs at a time. With 1 they train in this process, `follow` shows every round, and an error ends the command unless
    `keep_going`. then: called whenever runs may have ended.
    """
    from pflbench.store.failures import patiently
    from pflbench.sweep.choose_executor import ExecutorOptions, choose_executor

    tell_checkpoints(results, queue.how)
    state = patiently(partial(queue.state, results))
    over = set(state.states if places == 1 else state.keys("finished", "diverged"))
    here, others = (tuple(spec for spec in queue.specs if (spec.key in over) == inside) for inside in (True, False))
    try:
        whole = _make_here(replace(queue, specs=here), results, follow, then)
        if others:
            queue = replace(queue, specs=others)
            workers = choose_executor(ExecutorOptions(jobs=places), queue, results)
            stopped = make_by(workers, queue, results, quiet, then)
            state = patiently(partial(queue.state, results))
            tell_errors(state, ("failed", "diverged"))
            whole &= state.counts["finished"] == len(others)
            if stopped:
                message(f"Stopped: {stopped}. Left: {len(queue.ahead(state))}.")
    except KeyboardInterrupt:
        message("Interrupted. Finished rounds are stored; the same command continues.")
        raise typer.Exit(interrupts.exit_code()) from None
    return whole


def make_by(
    workers: Workers,
    queue: RunQueue,
    results: sqlalchemy.Engine,
    quiet: bool,
    then: Callable[[SweepState], None] = lambda state: None,
) -> str:
    """Has workers train the runs, also failed ones, and shows their progress. Returns as `run_jobs`."""
    from pflbench.store.failures import patiently
    from pflbench.store.sweeps import requeue
    from pflbench.sweep.run_jobs import run_jobs

    patiently(lambda: requeue(results, queue.specs))
    with sweep_view(queue, quiet) as show:

        def look(state: SweepState) -> None:
            show(state)
            then(state)

        return run_jobs(queue, results, workers, look)


def _make_here(queue: RunQueue, results: sqlalchemy.Engine, follow: Follow, then: Callable[[SweepState], None]) -> bool:
    """Trains runs one after another in this process. False if a run did not finish."""
    from pflbench.store.failures import patiently

    whole = True
    for specs in queue.packs(queue.specs, results):
        try:
            with closing(follow(specs, queue.execute(specs, results))) as steps:
                for _, step in steps:
                    whole &= not isinstance(step, UserError)
                    if isinstance(step, Occupied):
                        tell(str(step))
        except Exception as failed:
            if not queue.keep_going or isinstance(failed, Unreachable | Vanished):
                raise
            whole = False
            tell(str(failed) if isinstance(failed, UserError) else f"{type(failed).__name__}: {failed}")
        then(patiently(partial(queue.state, results)))
    return whole


def tell_checkpoints(results: sqlalchemy.Engine, how: Execution) -> None:
    """Prints a note about the place of checkpoints if needed. Raises UserError for an impossible place."""
    from pflbench.run.places import note, place_of

    if how.checkpoints:
        place_of(results.url, how.checkpoints).require_writable()
    text = note(results.url, how.checkpoints)
    if text is not None:
        message(f"Note: {text}")


def tell_errors(state: SweepState, states: Sequence[str]) -> None:
    """Prints why runs ended in these states, each reason once."""
    ended = [state.runs[key] for key in state.keys(*states)]
    for text in dict.fromkeys(run.message for run in ended if run is not None and run.message):
        tell(text.removeprefix("UserError: "))


def tell(error_and_hint: str) -> None:
    """Prints an error of a run's `message`: its hint is on the second line."""
    error(*error_and_hint.split("\n", 1))
