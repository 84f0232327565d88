"""`pflbench sweep`: trains a grid of runs side by side; finished runs are skipped, interrupted ones resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from pflbench.cli import options as o
from pflbench.cli.ahead import Ahead, look_ahead
from pflbench.cli.console import message, print_json, print_records, print_table, say
from pflbench.cli.data import fetch_missing
from pflbench.cli.db import opened
from pflbench.cli.help import HelpAll, LongCommand
from pflbench.cli.progress import differing_settings
from pflbench.cli.run import execution, prepare
from pflbench.cli.sweep_runs import Name, RetryFailed, SweepCommand, counted_states, environment, resume, train_rest, work
from pflbench.cli.train_runs import KeepGoing, Limit, tell_checkpoints
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.spec import RunSpec
    from pflbench.sweep.study import Study

# A sweep has --seeds, not --seed.
_MAIN = {**o.without(o.MAIN, "seed"), "methods": o.MAIN["methods"].replace(default=[])}


def _is_file(argument: str) -> bool:
    """Whether it is meant as a file, not as a misspelt command."""
    return bool(Path(argument).suffix) or Path(argument).exists()


class _Commands(TyperGroup):
    """`run` is the default command: `pflbench sweep heads.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {*self.commands, "--help", "-h"}
        if args and args[0] not in own and (args[0].startswith("-") or _is_file(args[0])):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Train a grid of runs side by side: `pflbench sweep FILE.yaml`, or the grid on the command line.",
)


@app.command(cls=LongCommand)
@o.taking(
    asked={**_MAIN, **o.PARTITION, **o.TRAINING, **o.BEHAVIOUR},
    executed=o.without(o.EXECUTION, "trajectory", "force"),
    workers=o.EXECUTORS,
)
def run(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.yaml]", show_default=False, help="The grid: a line for each option, such as beta: [0.1, 1]."
        ),
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option("--grid", metavar="NAME=V,V", help="An option of `run` or METHOD.NAME with several values; repeatable."),
    ] = [],  # noqa: B006
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Name of the sweep. Default: the file's.")] = None,
    order: Annotated[
        Literal["seed", "setting", "dataset"],
        typer.Option(help="seed: all runs of a seed before the next seed; setting, dataset: all runs of one first."),
    ] = "seed",
    retry_failed: RetryFailed = False,
    keep_going: KeepGoing = False,
    limit: Limit = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the runs and estimate their time; train nothing.")] = False,
    asked: o.Given,
    executed: o.Given,
    workers: o.Given,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    download: o.Download = True,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
    help_all: HelpAll = False,
) -> None:
    """Train all runs of a grid, several at a time. The same command continues after an interruption.

    Options that do not apply to a combination are ignored: beta for other partitions, a hyperparameter for other methods.
    """
    from pflbench.run import trusted
    from pflbench.run.plan import warnings
    from pflbench.sweep.choose_executor import executor_options
    from pflbench.sweep.grid import specifications

    executor = executor_options(workers)
    study = _study(file, grid, name, asked)
    if file and (code := trusted.files_named([*study.grid.values("model"), *study.grid.values("dataset")])):
        message(f"{file} names Python files, which are executed: {', '.join(code)}")
    names, partitions = ([*map(str, study.grid.values(of))] for of in ("dataset", "partition"))
    fetch_missing(names, partitions, data_dir, download and not dry_run, quiet)
    specs = specifications(study.grid, data_dir, order)
    for text in warnings(specs):
        message(f"Note: {text}")
    how = execution(executed)
    if dry_run:
        _show_plan(study.name, specs, look_ahead(specs, db, data_dir, how, executor), as_json)
        return
    prepare(specs, data_dir, quiet)  # a sweep that is refused is not stored
    with opened(db, create=True) as results:
        from pflbench.store import sweeps

        tell_checkpoints(results, how)  # nor is an impossible place
        sweep = sweeps.save(results, study.name, specs, environment(asked, executed, how, executor, data_dir, file))
        trusted.remember(trusted.wanted(specs, asked["plugins"], how.checkpoints, executor.words()))
        asked_now = SweepCommand(sweep, results, how, executor, data_dir, quiet, as_json)
        train_rest(asked_now, retry_failed=retry_failed, keep_going=keep_going, limit=limit, prepared=True)


app.command()(resume)
app.command()(work)


@app.command("list")
def list_(db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Show all sweeps of the database and their progress."""
    from pflbench.store import sweeps

    with opened(db) as results:
        records = []
        for sweep in sweeps.listed(results):
            counts = sweeps.sweep_state(results, sweep.specs).counts
            shown = {state: counts[state] for state in ("finished", "running", "missing")}
            shown["others"] = counts.total() - sum(shown.values())
            times = {"cancelled": sweep.cancelled_at, "created": sweep.created_at}
            records.append({"name": sweep.name, "runs": len(sweep.specs), **shown, **times})
    print_records(records, as_json)
    if not records:
        message("No sweeps yet: pflbench sweep FILE.yaml")


@app.command()
def status(name: Name, db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Show every run of a sweep: its state, its rounds, its best accuracy."""
    from pflbench.store import sweeps

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        stands = sweeps.sweep_state(results, sweep.specs)
    records: list[dict[str, Any]] = []
    settings = differing_settings(sweep.specs)
    for spec in sweep.specs:
        made = stands.runs[spec.key]
        records.append(
            {
                "run": made and made.id,
                "method": spec.method.name,
                "settings": settings[spec.key],
                "dataset": spec.data.label,
                "partition": spec.partition.label,
                "seed": spec.seed,
                "state": stands.states[spec.key],
                "rounds": f"{(made.last_round or 0) if made else 0}/{spec.train.rounds}",
                "best": made and made.best,
                "message": made and made.message,
            }
        )
    if as_json:
        print_json({"name": sweep.name, "cancelled": sweep.cancelled_at, "runs": records})
        return
    for record in records:
        record["best"] = None if record["best"] is None else f"{100 * record['best']:.2f} %"
    print_records(records)
    message(f"{sweep.name}: {counted_states(stands.counts)}{' Cancelled.' if sweep.cancelled_at else ''}")


@app.command()
def cancel(name: Name, db: o.Db = o.DEFAULT_DB) -> None:
    """Stop all workers of a sweep with checkpoints of their runs; `sweep resume` continues."""
    from pflbench.store import sweeps

    with opened(db) as results:
        sweep = sweeps.set_cancelled(results, name, True)
        running = sweeps.sweep_state(results, sweep.specs).counts["running"]
    message(f"{name} is cancelled. Training runs that will stop: {running}. Continue with: pflbench sweep resume {name}")


def _study(file: Path | None, grids: Sequence[str], name: str | None, asked: o.Given) -> Study:
    from pflbench.sweep.grid import options
    from pflbench.sweep.study import from_command_line, read

    given = {option: asked[field] for option, field in options().items() if asked[field] not in (None, [])}
    if not asked["ala"]:
        del given["ala"]
    settings = asked["settings"]
    if file is None:
        return from_command_line(grids, given, name, settings)
    if given or grids or settings:
        raise UserError(f"{file} has all options of its runs: {', '.join([*given, *grids, *settings])} goes there.")
    return read(file, name)


def _show_plan(name: str, specs: Sequence[RunSpec], ahead: Ahead, as_json: bool) -> None:
    """Prints the answer of --dry-run."""
    if as_json:
        print_json({"name": name, "runs": len(specs), **ahead.record(), "keys": [spec.key for spec in specs]})
        return
    every, left = (
        Counter((spec.method.name, spec.data.label, spec.partition.label) for spec in some) for some in (specs, ahead.runs)
    )
    rows = [(*cell, runs, runs - left[cell]) for cell, runs in every.items()]
    print_table(("method", "dataset", "partition", "runs", "there"), rows)
    say(f"{name}: {counted_states(ahead.state.counts)}")
    ahead.show()
