"""Trains the runs of a command, one after another in this process or several at a time by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench import interrupts
from pflbench.cli import options as o
from pflbench.cli.console import error, message
from pflbench.cli.progress import followed, sweep_view
from pflbench.errors import Occupied

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.store.sweeps import SweepState
    from pflbench.sweep.run_jobs import Workers
    from pflbench.sweep.run_queue import RunQueue, Steps


Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="auto|N",
        parser=o.auto_or_number,
        help="Runs at a time. auto: one for each core or GPU, as memory allows. 1: one after another.",
    ),
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", "-k", help="Continue with the others when a run fails.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Train at most so many runs now.")]


def train_all(
    queue: RunQueue,
    results: sqlalchemy.Engine,
    places: int,
    quiet: bool,
    report: Callable[[SweepState], None] = lambda state: None,
) -> bool:
    """Trains the runs of `run` and `reproduce`. False if a run did not finish; the reason is printed. Signals end the command.

    places: runs at a time. With 1 they train in this process, every round is shown, and an error ends the command unless
    `keep_going`. report: called whenever runs may have ended.
    """
    from pflbench.plugins import described
    from pflbench.store.failures import patiently
    from pflbench.sweep.choose_executor import ExecutorOptions, choose_executor
    from pflbench.sweep.run_queue import work

    tell_checkpoints(results, queue.how)
    state = patiently(partial(queue.state, results))
    ended = [spec for spec in queue.specs if state.states[spec.key] in ("finished", "diverged")]
    here = list(queue.specs) if places == 1 else ended
    by_workers = len(here) < len(queue.specs)
    follow, failures = followed(queue.specs, quiet), 0

    def follow_and_report(specs: Sequence[RunSpec], steps: Steps) -> Steps:
        yield from follow(specs, steps)
        report(patiently(partial(queue.state, results)))

    def failed(failure: Exception) -> None:
        nonlocal failures
        if not queue.keep_going:
            raise failure
        failures += 1
        error(described(failure))

    try:
        work(queue, results, queue.packs(here, results), follow=follow_and_report, failed=failed)
        if by_workers:
            stopped = train_by(choose_executor(ExecutorOptions(jobs=places), queue, results), queue, results, quiet, report)
        state = patiently(partial(queue.state, results))
        report(state)
        if by_workers:
            tell_errors(state)
            if stopped:
                message(f"Stopped: {stopped}. Left: {len(queue.ahead(state))}.")
    except KeyboardInterrupt:
        message("Interrupted. The same command continues from the last checkpoints.")
        raise typer.Exit(interrupts.exit_code()) from None
    return not failures and state.counts["finished"] == len(queue.specs)


def train_by(
    workers: Workers,
    queue: RunQueue,
    results: sqlalchemy.Engine,
    quiet: bool,
    report: Callable[[SweepState], None] = lambda state: None,
) -> str:
    """Has workers train the runs, also failed ones, and shows their progress. Returns as `run_jobs`."""
    from pflbench.store.failures import patiently
    from pflbench.store.sweeps import requeue
    from pflbench.sweep.run_jobs import run_jobs

    patiently(lambda: requeue(results, queue.specs))
    with sweep_view(queue, quiet) as show:

        def look(state: SweepState) -> None:
            show(state)
            report(state)

        return run_jobs(queue, results, workers, look)


def tell_checkpoints(results: sqlalchemy.Engine, how: Execution) -> None:
    """Prints a note about the place of checkpoints if needed. Raises UserError for an impossible place."""
    from pflbench.run.places import note, place_of

    if how.checkpoints:
        place_of(results.url, how.checkpoints).require_writable()
    if text := note(results.url, how.checkpoints):
        message(f"Note: {text}")


def tell_errors(state: SweepState) -> None:
    """Prints why runs failed or diverged, each reason once."""
    ended = [state.runs[key] for key in state.keys("failed", "diverged")]
    for text in dict.fromkeys(run.message for run in ended if run is not None and run.message):
        error(text.removeprefix("UserError: "))


def tell_failure(failure: Exception) -> None:
    """Prints the error of a run, unless another worker was quicker."""
    from pflbench.plugins import described

    if not isinstance(failure, Occupied):
        error(described(failure))
