"""`pflbench sweep`: trains a grid of runs side by side; finished runs are skipped, interrupted ones resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pflbench.cli import options as o
from pflbench.cli.console import command_line, duration, message, print_json, print_table, say
from pflbench.cli.db import opened, opened_if_there
from pflbench.cli.executors import EXECUTORS
from pflbench.cli.making import KeepGoing, Limit
from pflbench.cli.progress import apart
from pflbench.cli.run import execution
from pflbench.cli.sweep_runs import NAMED, Quiet, RetryFailed, SweepCommand, counted_states, make, resume, work
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.execution import Execution
    from pflbench.spec import RunSpec
    from pflbench.sweep.choose_executor import ExecutorOptions
    from pflbench.sweep.study import Study

# A sweep has --seeds, not --seed.
_MAIN = {name: option for name, option in o.only(*o.MAIN, methods=[]).items() if name != "seed"}
_GIVEN = {name: option for name, option in o.EXECUTION.items() if name not in ("trajectory", "force")}


class _Commands(TyperGroup):
    """`run` is the default command: `pflbench sweep heads.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Train a grid of runs side by side: `pflbench sweep FILE.yaml`, or the grid on the command line.",
)


@app.command()
@o.taking(asked={**_MAIN, **o.PARTITION, **o.TRAINING}, executed=_GIVEN, workers=EXECUTORS)
def run(
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.yaml]", show_default=False, help="The grid: see docs/sweeps.md.")
    ] = None,
    grid: Annotated[
        list[str],
        typer.Option("--grid", metavar="NAME=V,V", help="An option of `run` or METHOD.NAME with several values; repeatable."),
    ] = [],  # noqa: B006
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Name of the sweep. Default: the file's.")] = None,
    order: Annotated[
        str,
        typer.Option(
            **o.among("seed", "setting", "dataset"),
            help="seed: all runs of a seed before the next seed; setting, dataset: all runs of a setting or dataset first.",
        ),
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
    quiet: Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Train all runs of a grid, several at a time. The same command continues after an interruption.

    Options that do not apply to a combination are ignored: beta for other partitions, a hyperparameter for other methods.
    """
    from pflbench.run import trusted
    from pflbench.run.places import place_of
    from pflbench.run.plan import warnings
    from pflbench.sweep.choose_executor import executor_options
    from pflbench.sweep.grid import specifications

    executor = executor_options(workers)
    study = _study(file, grid, name, asked)
    if file and (code := trusted.files_named([*study.grid.values("model"), *study.grid.values("dataset")])):
        message(f"{file} names Python files, which are executed: {', '.join(code)}")
    specs = specifications(study.grid, data_dir, order)
    for text in warnings(specs):
        message(f"Note: {text}")
    how = execution({**executed, "trajectory": None, "force": False})
    if dry_run:
        _outlook(study.name, specs, db, data_dir, how, executor, as_json)
        return
    environment = {
        "command": command_line(how.record_host),
        "execution": executed,
        "workers": executor.plain(),
        "data_dir": str(data_dir.absolute()),
        "plugins": [str(path.absolute()) for path in asked["plugins"]],
        "file": None if file is None else file.read_text(encoding="utf-8"),
    }
    with opened(db, create=True) as results:
        from pflbench.store import sweeps

        place_of(results.url, how.checkpoints)  # an impossible place must not be stored
        sweep = sweeps.save(results, study.name, specs, json.loads(json.dumps(environment, default=str)))
        trusted.remember(trusted.wanted(specs, asked["plugins"], how.checkpoints, executor.words()))
        asked_now = SweepCommand(sweep, results, how, executor, data_dir, quiet, as_json)
        make(asked_now, retry_failed=retry_failed, keep_going=keep_going, limit=limit)


app.command()(resume)
app.command()(work)


@app.command("list")
def list_(db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Show all sweeps of the database and their progress."""
    from pflbench.store import sweeps

    with opened(db) as results:
        found = [(sweep, sweeps.sweep_state(results, sweep.specs)) for sweep in sweeps.listed(results)]
    records = [
        {
            "name": sweep.name,
            "runs": len(sweep.specs),
            **{state: stands.counts[state] for state in ("finished", "running", "missing")},
            "others": sum(count for state, count in stands.counts.items() if state not in ("finished", "running", "missing")),
            "cancelled": sweep.cancelled_at,
            "created": sweep.created_at,
        }
        for sweep, stands in found
    ]
    if as_json:
        print_json(records)
    elif records:
        print_table(tuple(records[0]), [tuple(record.values()) for record in records])
    else:
        message("No sweeps yet: pflbench sweep FILE.yaml")


@app.command()
def status(name: NAMED, db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Show every run of a sweep: its state, its rounds, its best accuracy."""
    from pflbench.store import sweeps

    with opened(db) as results:
        sweep = sweeps.find(results, name)
        stands = sweeps.sweep_state(results, sweep.specs)
    records = []
    for spec, more in zip(sweep.specs, apart(sweep.specs), strict=True):
        made = stands.runs[spec.key]
        records.append(
            {
                "run": made.id if made else None,
                "method": spec.method.name,
                "settings": more,
                "dataset": spec.data.label,
                "partition": spec.partition.label,
                "seed": spec.seed,
                "state": stands.states[spec.key],
                "rounds": f"{(made.last_round or 0) if made else 0}/{spec.train.rounds}",
                "best": None if made is None else made.best,
                "message": made.message if made else None,
            }
        )
    if as_json:
        print_json({"name": sweep.name, "cancelled": sweep.cancelled_at, "runs": records})
        return
    for record in records:
        record["best"] = None if record["best"] is None else f"{100 * record['best']:.2f}"
    print_table([name.replace("best", "best %") for name in records[0]], [tuple(record.values()) for record in records])
    message(f"{sweep.name}: {counted_states(stands.counts)}{' Cancelled.' if sweep.cancelled_at else ''}")


@app.command()
def cancel(name: NAMED, db: o.Db = o.DEFAULT_DB) -> None:
    """Stop all workers of a sweep with checkpoints of their runs; `sweep resume` continues."""
    from pflbench.store import sweeps

    with opened(db) as results:
        sweep = sweeps.set_cancelled(results, name, True)
        running = sweeps.sweep_state(results, sweep.specs).counts["running"]
    message(f"{name} is cancelled. Training runs that will stop: {running}. Continue with: pflbench sweep resume {name}")


def _study(file: Path | None, grids: Sequence[str], name: str | None, asked: o.Given) -> Study:
    """The grid of the file or the command line."""
    from dataclasses import replace

    from pflbench.sweep.grid import options
    from pflbench.sweep.study import from_command_line, read

    fields = {field: option for option, field in options().items()}
    said = {field: value for field, value in asked.items() if field in fields and value is not None and value != []}
    given = {fields[field]: value for field, value in said.items() if field != "ala" or value}
    settings = asked["settings"]
    if file is None:
        return from_command_line(grids, given, name, settings)
    if given or grids or settings:
        raise UserError(
            f"{file} has all options of its runs: {', '.join([*given, *grids, *settings])} cannot be added here.",
            "Write it into the file.",
        )
    study = read(file)
    return replace(study, name=name) if name else study


def _outlook(
    name: str, specs: Sequence[RunSpec], db: str, data_dir: Path, how: Execution, executor: ExecutorOptions, as_json: bool
) -> None:
    """Prints finished and missing runs. Creates no database. Runs without data are counted but not timed."""
    from pflbench.report.labels import counted
    from pflbench.reproduce.forecast import forecast
    from pflbench.reproduce.progress import lacking
    from pflbench.store import sweeps
    from pflbench.sweep.choose_executor import at_a_time

    with (
        opened_if_there(db) as found_there,
        nullcontext(found_there) if found_there else opened("sqlite://", create=True) as results,
    ):
        stands = sweeps.sweep_state(results, specs)
        ahead = [spec for spec in specs if stands.states[spec.key] not in ("finished", "diverged", "failed")]
        without = lacking(ahead, data_dir)
        here = [spec for spec in ahead if spec.data.label not in without]
        found = forecast(here, results, data_dir, how) if here else None
    together = at_a_time(executor, here, data_dir, how) if here else 0
    seconds = None if found is None or found.seconds is None else found.seconds / (together or 1)
    memory = None if found is None or found.memory is None else found.memory * (together or 1)
    record = {
        "name": name,
        "runs": len(specs),
        "to_run": len(ahead),
        "without_data": {label: reason.message for label, reason in without.items()},
        "states": dict(stands.counts),
        "at_a_time": together,
        "seconds": seconds,
        "disk": None if found is None else found.disk,
        "memory": memory,
    }
    if as_json:
        print_json({**record, "keys": [spec.key for spec in specs]})
        return
    rows: dict[tuple[str, str, str], list[int]] = {}
    for spec in specs:
        cell = rows.setdefault((spec.method.name, spec.data.label, spec.partition.label), [0, 0])
        cell[0] += 1
        cell[1] += stands.states[spec.key] in ("finished", "diverged", "failed")
    print_table(("method", "dataset", "partition", "runs", "there"), [(*names, *counts) for names, counts in rows.items()])
    say(f"{name}: {counted_states(stands.counts)}")
    for label, reason in without.items():
        waiting = sum(spec.data.label == label for spec in ahead)
        say(f"{reason.message} {counted(waiting, 'run')} cannot start. {reason.hint}")
    if not ahead:
        say("No run is missing.")
        return
    if not here:
        say(f"To run: {len(ahead)}. Time: unknown without the data.")
        return
    begin = f"To run: {len(here)}, {f'{together} at a time' if together else 'as many at a time as the cluster has room for'}."
    if found is None:
        say(f"{begin} Time: a few minutes at most.")
        return
    time = "unknown" if seconds is None else f"about {duration(seconds)}{'' if together else ' one after another'}"
    needs = "" if memory is None else f" Memory: {memory / 1e9:.2g} GB{'' if together else ' each'}."
    say(f"{begin} Time: {time}. Disk: {found.disk / 1e6:,.0f} MB.{needs}")
