"""`sweep resume` and `sweep work`: train the runs of a stored sweep, on this machine or a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench import interrupts
from pflbench.cli import options as o
from pflbench.cli.checkup import note_unchecked
from pflbench.cli.console import message, print_json
from pflbench.cli.db import opened
from pflbench.cli.progress import followed
from pflbench.cli.run import execution, prepare
from pflbench.cli.train_runs import KeepGoing, Limit, tell_checkpoints, tell_errors, tell_failure, train_by

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.store.sweeps import StoredSweep, SweepState
    from pflbench.sweep.choose_executor import ExecutorOptions
    from pflbench.sweep.run_queue import RunQueue

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the sweep: see `pflbench sweep list`.")]
Files = Annotated[
    list[Path],
    typer.Option(
        "--plugin", metavar="FILE.py", help="A Python file of a sweep from another machine that may be executed; repeatable."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Also train runs that failed before, from their checkpoints.")]


@dataclass(frozen=True)
class SweepCommand:
    """A stored sweep, and how this command trains its runs."""

    sweep: StoredSweep
    results: sqlalchemy.Engine
    how: Execution
    workers: ExecutorOptions
    data_dir: Path
    quiet: bool
    as_json: bool = False

    def queue(self, specs: Sequence[RunSpec], keep_going: bool) -> RunQueue:
        from pflbench.sweep.run_queue import RunQueue

        plugins, url = _plugins(self.sweep), self.results.url
        return RunQueue(tuple(specs), url, self.data_dir, self.how, plugins, keep_going=keep_going, sweep=self.sweep.id)


def environment(
    asked: o.Given, executed: o.Given, how: Execution, workers: ExecutorOptions, data_dir: Path, file: Path | None = None
) -> dict[str, Any]:
    """What is stored with a sweep, as JSON types, so that other commands can continue it. file: with its grid."""
    stored = {
        "command": how.command,
        "execution": executed,
        "workers": workers.plain(),
        "data_dir": str(data_dir.absolute()),
        "plugins": [str(path.absolute()) for path in asked["plugins"]],
        "file": None if file is None else file.read_text(encoding="utf-8"),
    }
    found: dict[str, Any] = json.loads(json.dumps(stored, default=str))
    return found


@o.taking(workers=o.EXECUTORS)
def resume(
    name: Name,
    workers: o.Given,
    checkpoints: o.Checkpoints = None,
    files: Files = [],  # noqa: B006
    retry_failed: RetryFailed = False,
    keep_going: KeepGoing = False,
    limit: Limit = None,
    db: o.Db = o.DEFAULT_DB,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Continue a sweep, also a cancelled one, with the options of its first command.

    Another executor may continue it. For a sweep from another machine, code and addresses must be typed again.
    """
    from pflbench.plugins.methods import plugged_in
    from pflbench.store import sweeps
    from pflbench.sweep.choose_executor import executor_options

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        executor = executor_options(workers, sweep.environment.get("workers"))
        typed = executor_options(workers).words() if workers["executor"] else ()
        how = _allowed(sweep, files, checkpoints, executor.words(), typed)
        sweep = sweeps.set_cancelled(results, name, False)
        asked = SweepCommand(sweep, results, how, executor, Path(sweep.environment["data_dir"]), quiet, as_json)
        tell_checkpoints(results, how)
        with plugged_in(_plugins(sweep)):
            train_rest(asked, retry_failed=retry_failed, keep_going=keep_going, limit=limit)


def work(
    name: Name,
    checkpoints: o.Checkpoints = None,
    files: Files = [],  # noqa: B006
    cpus_per_job: Annotated[int | None, typer.Option(metavar="N", min=1, help="Cores. Default: all.")] = None,
    limit: Limit = None,
    db: o.Db = o.DEFAULT_DB,
    quiet: o.Quiet = False,
) -> None:
    """Train runs of a stored sweep, one after another, until none is left. Any number of these commands may share a sweep.

    `--executor slurm` has Slurm start them; any other queue may, too. A run that fails stops no other.
    """
    from pflbench.environment import cores
    from pflbench.plugins.methods import plugged_in
    from pflbench.run.device import find_device
    from pflbench.store import sweeps
    from pflbench.sweep import run_queue
    from pflbench.sweep.choose_executor import ExecutorOptions

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        if sweep.cancelled_at:
            message(f"{name} is cancelled. Continue with: pflbench sweep resume {name}")
            return
        how = _allowed(sweep, files, checkpoints)
        asked = SweepCommand(sweep, results, how, ExecutorOptions(), Path(sweep.environment["data_dir"]), quiet)
        with plugged_in(_plugins(sweep)):
            ahead, skipped = remaining(asked, retry_failed=False)
            note_unchecked(how, quiet)
            queue = asked.queue(ahead, keep_going=True).on(str(find_device(how.device)), cpus_per_job or cores())
            try:
                packs = islice(run_queue.unclaimed(queue, results), limit)
                made = run_queue.work(queue, results, packs, follow=followed(ahead, quiet), failed=tell_failure)
            except KeyboardInterrupt:
                message(f"Interrupted. Continue with: pflbench sweep resume {name}")
                raise typer.Exit(interrupts.exit_code()) from None
            state = sweeps.sweep_state(results, [spec for spec in ahead if spec.key in made])
            _report(asked, state, skipped, "it was cancelled" if queue.cancelled(results) else "")


def train_rest(asked: SweepCommand, *, retry_failed: bool, keep_going: bool, limit: int | None, prepared: bool = False) -> None:
    """Trains the remaining runs. Exit code 2 if one did not finish; after a signal, the signal's exit code.

    prepared: `prepare` has checked all runs.
    """
    from pflbench.store import sweeps

    ahead, skipped = remaining(asked, retry_failed)
    ahead, why, interrupted = ahead[:limit], "", False
    if ahead:
        if not prepared:
            prepare(ahead, asked.data_dir, asked.quiet)
        try:
            stopped = train(asked, ahead, keep_going, limit)
        except KeyboardInterrupt:
            interrupted = True
        else:
            if stopped is None:
                return
            why = stopped
    state = sweeps.sweep_state(asked.results, ahead)
    tell_errors(state)
    _report(asked, state, skipped, why, interrupted=interrupted)


def train(asked: SweepCommand, ahead: Sequence[RunSpec], keep_going: bool, limit: int | None = None) -> str | None:
    """Trains runs of a sweep. Returns as `run_jobs`; None if Slurm has them in its queue. Raises KeyboardInterrupt."""
    from pflbench.sweep.choose_executor import choose_executor

    if asked.workers.executor == "slurm":
        _submit(asked, ahead, limit)
        return None
    if asked.workers.executor == "local":  # a cluster's nodes have GPUs of their own
        note_unchecked(asked.how, asked.quiet)
    queue = asked.queue(ahead, keep_going)
    return train_by(choose_executor(asked.workers, queue, asked.results), queue, asked.results, asked.quiet)


def _allowed(
    sweep: StoredSweep,
    files: Sequence[Path],
    checkpoints: str | None,
    executor: tuple[str, ...] = (),
    typed: tuple[str, ...] = (),
) -> Execution:
    """The execution of a stored sweep. Raises UserError for code and addresses that the user has not typed on this machine.

    executor: the words that name its cluster; typed: those of this command.
    """
    from pflbench.run import trusted

    before = sweep.environment["execution"]
    how = execution({**before, "checkpoints": checkpoints or before.get("checkpoints")})
    wanted = trusted.wanted(sweep.specs, _plugins(sweep), how.checkpoints, executor)
    now = trusted.wanted((), files, checkpoints, typed)
    trusted.require_typed(f"The sweep '{sweep.name}'", wanted, now)
    trusted.remember(wanted)
    return how


def _plugins(sweep: StoredSweep) -> tuple[Path, ...]:
    return tuple(Path(path) for path in sweep.environment["plugins"])


def remaining(asked: SweepCommand, retry_failed: bool) -> tuple[list[RunSpec], dict[str, str]]:
    """The runs to train, and the states of those to skip: finished, diverged, or failed before."""
    from pflbench.run.training import require_same_code
    from pflbench.store import sweeps
    from pflbench.store.locks import OVER

    state = sweeps.sweep_state(asked.results, asked.sweep.specs)
    for spec in asked.sweep.specs:
        if (begun := state.runs[spec.key]) is not None:
            require_same_code(begun, spec)
    over = {*OVER} - {"failed"} if retry_failed else OVER
    skipped = {key: own for key, own in state.states.items() if own in over}
    return [spec for spec in asked.sweep.specs if spec.key not in skipped], skipped


def _submit(asked: SweepCommand, ahead: Sequence[RunSpec], limit: int | None) -> None:
    """Queues workers for the runs with Slurm. Failed runs are reset, so that workers take them, too."""
    from pflbench.run import trusted
    from pflbench.store import sweeps
    from pflbench.sweep.slurm import submit

    name = asked.sweep.name
    typed = trusted.wanted(asked.sweep.specs, _plugins(asked.sweep), asked.how.checkpoints)
    worker = [sys.executable, "-m", "pflbench", "sweep", "work", name, *(word for words in typed for word in words)]
    number = submit(asked.workers, name, ahead, asked.results, asked.data_dir, asked.how, worker, limit)
    sweeps.requeue(asked.results, ahead)
    if asked.as_json:
        print_json({"name": name, "slurm_job": number, "runs": len(ahead)})
    message(f"{name}: workers for {len(ahead)} run{'s' * (len(ahead) > 1)} are in Slurm's queue as job {number}.")
    message(f"Progress: pflbench sweep status {name}. Stop: pflbench sweep cancel {name}")


def _report(asked: SweepCommand, state: SweepState, skipped: Mapping[str, str], why: str, *, interrupted: bool = False) -> None:
    """Prints the states of the runs and sets the exit code. why: the reason why no more runs were started."""
    from pflbench.sweep.run_queue import news

    name = asked.sweep.name
    if asked.as_json:
        begun = [(key, own, state.runs[key]) for key, own in state.states.items() if own != "missing"]
        runs = [{"key": key, "state": own, "message": (run and run.message) or "", "news": news(run)} for key, own, run in begun]
        print_json({"name": name, "skipped": skipped, "runs": runs})
    counts = state.counts
    numbers = {"Ended before": len(skipped), "Left": counts.pop("missing", 0), "Stopped": why}
    parts = [f"{word}: {value}." for word, value in numbers.items() if value]
    message(" ".join((f"{name}: {counted_states(counts)}", *parts)))
    if failed := sum(own == "failed" for own in skipped.values()):
        message(f"Failed before and skipped: {failed}. --retry-failed tries again.")
    if interrupted:
        message(f"Interrupted. Continue with: pflbench sweep resume {name}")
        raise typer.Exit(interrupts.exit_code())
    if why or state.keys("failed", "diverged", "interrupted"):
        raise typer.Exit(2)


def counted_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) + "." if any(states.values()) else "no runs."
