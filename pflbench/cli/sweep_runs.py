"""`sweep resume` and `sweep work`: the runs of a stored sweep are made, by this machine or by a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench import interrupts
from pflbench.cli import options as o
from pflbench.cli.checkup import note_unchecked
from pflbench.cli.console import command_line, message, print_json
from pflbench.cli.db import opened
from pflbench.cli.executors import EXECUTORS
from pflbench.cli.making import KeepGoing, Limit, made, tell_checkpoints, tell_errors
from pflbench.cli.progress import sweep_view
from pflbench.cli.run import execution, prepare

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.store.sweeps import StoredSweep
    from pflbench.sweep.conduct import Course
    from pflbench.sweep.hire import Hiring
    from pflbench.sweep.jobs import Job

NAMED = Annotated[str, typer.Argument(metavar="NAME", help="Of the sweep: see `pflbench sweep list`.")]
Files = Annotated[
    list[Path],
    typer.Option(
        "--plugin", metavar="FILE.py", help="A Python file of a sweep begun elsewhere that may be executed; repeatable."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Also the runs that failed before, from their checkpoints.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


@dataclass(frozen=True)
class SweepCommand:
    """A stored sweep, and how this command makes its runs."""

    sweep: StoredSweep
    results: sqlalchemy.Engine
    how: Execution
    hiring: Hiring
    data_dir: Path
    quiet: bool = False
    as_json: bool = False

    @property
    def plugins(self) -> tuple[Path, ...]:
        return _plugins(self.sweep)


@o.taking(workers=EXECUTORS, place=o.only("checkpoints"))
def resume(
    name: NAMED,
    workers: o.Given,
    place: o.Given,
    files: Files = [],  # noqa: B006
    retry_failed: RetryFailed = False,
    keep_going: KeepGoing = False,
    limit: Limit = None,
    db: o.Db = o.DEFAULT_DB,
    quiet: Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Go on with a sweep, also one that was cancelled, with the options it was begun with.

    Another executor may go on with what one has begun. Of a sweep that was begun elsewhere, code and addresses are typed again.
    """
    from pflbench.plugins.methods import plugged_in
    from pflbench.store import sweeps
    from pflbench.sweep.hire import asked_for

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        hiring = asked_for(workers, sweep.environment.get("workers"))
        how = _allowed(sweep, files, place["checkpoints"], hiring, asked_for(workers) if workers["executor"] else None)
        sweep = sweeps.reopen(results, name)
        asked = SweepCommand(sweep, results, how, hiring, Path(sweep.environment["data_dir"]), quiet, as_json)
        with plugged_in(asked.plugins):
            make(asked, retry_failed=retry_failed, keep_going=keep_going, limit=limit)


@o.taking(place=o.only("checkpoints"))
def work(
    name: NAMED,
    place: o.Given,
    files: Files = [],  # noqa: B006
    cpus_per_job: Annotated[int | None, typer.Option(metavar="N", min=1, help="Cores. Default: all.")] = None,
    limit: Limit = None,
    db: o.Db = o.DEFAULT_DB,
    quiet: Quiet = False,
) -> None:
    """Make runs of a stored sweep, one after another, until none is left. Any number of these commands share one sweep.

    `--executor slurm` has Slurm start them; any other queue may, too. A run that fails stops no other.
    """
    from pflbench.plugins.methods import plugged_in
    from pflbench.store import sweeps
    from pflbench.sweep.conduct import course, unclaimed_jobs
    from pflbench.sweep.hire import Hiring
    from pflbench.sweep.jobs import jobs_of

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        if sweep.cancelled_at:
            message(f"{name} is cancelled. Go on with: pflbench sweep resume {name}")
            return
        hiring = Hiring(jobs=1, cpus_per_job=cpus_per_job)
        how = _allowed(sweep, files, place["checkpoints"], hiring)
        asked = SweepCommand(sweep, results, how, hiring, Path(sweep.environment["data_dir"]), quiet)
        with plugged_in(asked.plugins):
            found = course(results, sweep.specs)
            note_unchecked(how, quiet)
            how = replace(how, command=command_line(how.record_host))
            waiting = unclaimed_jobs(
                results, found.ahead, lambda left: jobs_of(left, results, asked.data_dir, how, asked.plugins)
            )
            _by_workers(asked, found, islice(waiting, limit), keep_going=True, shared=True)


def make(asked: SweepCommand, *, retry_failed: bool, keep_going: bool, limit: int | None) -> None:
    """The runs that are left. Exit code 2 if one did not finish, that of the signal after Ctrl-C and the like."""
    from pflbench.sweep.conduct import course
    from pflbench.sweep.jobs import jobs_of

    found = course(asked.results, asked.sweep.specs, retry_failed=retry_failed, limit=limit)
    if found.ahead:
        prepare(found.ahead, asked.data_dir, asked.quiet)
        tell_checkpoints(asked.results, asked.how)
    if found.ahead and asked.hiring.executor == "slurm":
        _queue(asked, found, limit)
        return
    if found.ahead and asked.hiring.executor == "local":  # a cluster's nodes have GPUs of their own
        note_unchecked(asked.how, asked.quiet)
    how = replace(asked.how, command=command_line(asked.how.record_host))
    waiting = jobs_of(found.ahead, asked.results, asked.data_dir, how, asked.plugins)
    _by_workers(asked, found, waiting, keep_going=keep_going)


def _allowed(
    sweep: StoredSweep, files: Sequence[Path], checkpoints: str | None, hiring: Hiring, typed: Hiring | None = None
) -> Execution:
    """How the runs of a stored sweep are made. Raises UserError for code and addresses that this user has not typed here."""
    from pflbench.run import trusted

    before = {**sweep.environment["execution"], "trajectory": None, "force": False}
    how = execution({**before, "checkpoints": checkpoints or before.get("checkpoints")})
    wanted = trusted.wanted(sweep.specs, _plugins(sweep), how.checkpoints, hiring.words())
    now = trusted.wanted((), files, checkpoints, typed.words() if typed else ())
    trusted.require_typed(f"The sweep '{sweep.name}'", wanted, now)
    trusted.remember(wanted)
    return how


def _plugins(sweep: StoredSweep) -> tuple[Path, ...]:
    return tuple(Path(path) for path in sweep.environment["plugins"])


def _queue(asked: SweepCommand, found: Course, limit: int | None) -> None:
    """Workers for the runs ahead, in Slurm's queue. Those of them that failed wait there like the others."""
    from pflbench.run import trusted
    from pflbench.store import sweeps, write
    from pflbench.sweep.hire import queue

    name, ahead = asked.sweep.name, found.ahead
    typed = trusted.wanted(asked.sweep.specs, asked.plugins, asked.how.checkpoints)
    worker = [sys.executable, "-m", "pflbench", "sweep", "work", name, *(word for words in typed for word in words)]
    number = queue(asked.hiring, name, ahead, asked.results, asked.data_dir, asked.how, worker, limit)
    for run in sweeps.standing(asked.results, ahead).runs.values():
        if run is not None and run.status == "failed":
            write.update_run(asked.results, run.id, status="queued")
    if asked.as_json:
        print_json({"name": name, "slurm_job": number, "runs": len(ahead)})
    message(f"{name}: workers for {len(ahead)} run{'s' * (len(ahead) > 1)} are in Slurm's queue as job {number}.")
    message(f"How they stand: pflbench sweep status {name}. To stop them: pflbench sweep cancel {name}")


def _by_workers(asked: SweepCommand, found: Course, waiting: Iterator[Job], *, keep_going: bool, shared: bool = False) -> None:
    """Jobs of the runs ahead, by processes or a Ray cluster. shared: what they leave is made by others."""
    from pflbench.store import sweeps
    from pflbench.sweep.hire import hire

    sweep, whole = asked.sweep, True
    if found.ahead:
        workers = hire(asked.hiring, found.ahead, asked.results, asked.data_dir, asked.how)

        def cancelled() -> bool:
            return sweeps.cancelled(asked.results, sweep.id)

        shown = sweep_view(found, asked.results, asked.quiet)
        whole = made(found, workers, waiting, shown, keep_going=keep_going, cancelled=cancelled)
    _report(sweep.name, found, asked.as_json, 0 if shared else len(found.ahead))
    if not whole:
        message(f"Interrupted. Go on with: pflbench sweep resume {sweep.name}")
        raise typer.Exit(interrupts.exit_code())
    if found.count("failed") or found.count("diverged") or found.count("interrupted") or found.stopped:
        raise typer.Exit(2)


def _report(name: str, found: Course, as_json: bool, ahead: int) -> None:
    if as_json:
        print_json({"name": name, "skipped": found.skipped, "runs": [asdict(one) for one in found.ended.values()]})
    tell_errors(found, ("failed", "diverged"))
    states: dict[str, int] = {}
    for outcome in found.ended.values():
        states[outcome.state] = states.get(outcome.state, 0) + 1
    skipped = f" There before: {len(found.skipped)}." if found.skipped else ""
    left = f" Left: {ahead}." if ahead else ""
    message(f"{name}: {counted_states(states)}{skipped}{left}{f' Stopped: {found.stopped}.' if found.stopped else ''}")
    failed = sum(state == "failed" for state in found.skipped.values())
    if failed:
        message(f"{failed} failed before and {'was' if failed == 1 else 'were'} left as it is; --retry-failed tries again.")


def counted_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) + "." if any(states.values()) else "no runs."
