"""`pflbench runs`: the runs of the database. Those that are repeated: `cli.repeat`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_fields, print_json, print_table, say
from pflbench.cli.db import opened
from pflbench.cli.progress import differences
from pflbench.cli.repeat import RunArgument, bundle, reproduce, verify
from pflbench.cli.reports import FILTERS, found_runs
from pflbench.errors import NothingYet, UserError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.store.partitions import PartitionRecord
    from pflbench.store.runs import Run, RunHead

app = typer.Typer(help="List, show, repeat and remove runs.", no_args_is_help=True)


@app.command("list")
@o.taking(which=FILTERS)
def list_(
    *,
    which: o.Given,
    key: Annotated[str, typer.Option(help="A key; its beginning suffices.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show the newest N runs.")] = 50,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """List runs, newest first."""
    with opened(db) as engine:
        try:
            found = [run for run in reversed(found_runs(engine, which)) if run.key.startswith(key.lower())]
        except NothingYet:
            found = []
    shown = found[:limit]
    if as_json:
        print_json([_line(one) for one in shown])
    elif not shown:
        message("No such runs.")
    else:
        names = [(i.method, i.dataset, i.partition_label) for i in shown]
        apart = differences(names, [i.spec for i in shown], said=("partition.clients", "train.rounds"))
        columns = ["run", "key", "status", "method", "dataset", "partition", "clients", "seed", "rounds", "best %", "created"]
        rows = [
            (i.id, i.key, i.status, i.method, i.dataset, i.partition_label, i.clients, i.seed,
             f"{i.last_round or 0}/{i.rounds}", "" if i.best is None else f"{100 * i.best:.2f}", i.created_at, more)
            for i, more in zip(shown, apart, strict=True)
        ]  # fmt: skip
        columns += ["differs in"] * any(apart)
        print_table(columns, [row[: len(columns)] for row in rows], spare=("key", "created"))
    if len(found) > limit:
        message(f"There are more: --limit {2 * limit}.")


@app.command()
def show(
    run: RunArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, max=10**9, help="Show the last N rounds.")] = 10,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Show one run: specification, environment, partition and last rounds."""
    from pflbench.store import arrays, partitions, rounds, runs

    with opened(db) as engine:
        found = runs.find(engine, run)
        partition = None if found.partition is None else partitions.find(engine, found.partition)
        newest = rounds.newest_rows(engine, found.id, last)
        series = [one.name for one in rounds.second_series(engine, found.id)]
        kept = arrays.listed(engine, found.id)
    if as_json:
        print_json(
            {
                "info": _line(found),
                "protocol": found.protocol,
                "spec": dict(found.spec),
                "environment": dict(found.environment),
                "parameters": found.parameters,
                "partition": None if partition is None else _plain(partition),
                "last_rounds": newest,
                "series": series,
                "artifacts": kept,
            }
        )
        return
    fields = _fields(found, partition)
    if series:
        fields.append(("series", ", ".join(series)))
    if kept:
        fields.append(("artifacts", ", ".join(sorted({one["name"] for one in kept}))))
    print_fields(fields)
    columns = ("accuracy", "accuracy_mean", "accuracy_std", "test_loss", "train_loss", "seconds_update", "seconds_evaluate")
    rows = [[row["round"], *(None if row[c] is None else f"{row[c]:.4g}" for c in columns)] for row in newest]
    if rows:
        say()
        print_table(("round", *(c.replace("_", " ") for c in columns)), rows)


@app.command()
def artifact(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `runs show`, e.g. traffic or ala_weights.")],
    round_: Annotated[int | None, typer.Option("--round", help="Default: the newest.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.npy", help="Write it as NumPy's .npy.")] = None,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Print a stored array of a run as JSON, or write it to a file."""
    from pflbench.store import arrays, runs

    with opened(db) as engine:
        array = arrays.read_one(engine, runs.find(engine, run).id, name, round_)
    if output is None:
        print_json({"name": name, "shape": array.shape, "dtype": str(array.dtype), "values": array.tolist()})
        return
    arrays.write_npy(output, array)
    message(f"Wrote {output}: {array.dtype} {list(array.shape)}.")


@app.command()
def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Numbers, or keys (their beginnings suffice).")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    checkpoints: Annotated[
        str | None,
        typer.Option(envvar="PFLBENCH_CHECKPOINTS", metavar="PATH|URL", help="The place of their checkpoints, as in `run`."),
    ] = None,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Remove runs with all their rounds, after asking. A run that trains is refused."""
    from pflbench.store.locks import UNDER_WAY
    from pflbench.store.runs import find_head

    with opened(db) as engine:
        found = {info.id: info for info in (find_head(engine, run) for run in runs)}
        for info in found.values():
            if info.status in UNDER_WAY:
                raise UserError(f"Run {info.id} is under way: a process is at it.", "Stop that first. Nothing was removed.")
            message(f"run {info.id}: {info.method}, {info.dataset}, seed {info.seed}, {info.status}")
        if not yes:
            if not sys.stdin.isatty():
                raise UserError("Nothing was removed: there is no terminal to ask on.", "Add --yes.")
            typer.confirm(f"Remove {len(found)} run{'s' * (len(found) != 1)} with all rounds?", err=True, abort=True)
        for info in found.values():
            _remove(engine, info, checkpoints)
    message(f"Removed {len(found)} run{'s' * (len(found) != 1)}.")


def _remove(engine: Engine, run: RunHead, checkpoints: str | None) -> None:
    """Removes a run with its files, under its lock, so that nobody resumes it meanwhile."""
    from pflbench.run.places import name_of, place_of
    from pflbench.store import locks, write

    with nullcontext() if run.ended else locks.locked(engine, run.key):
        write.remove_run(engine, run.id)
        place_of(engine.url, checkpoints).remove(f"{name_of(run, engine.url, checkpoints)}.pt")


app.command()(reproduce)
app.command()(bundle)
app.command()(verify)

LISTED = (
    *("id", "key", "attempt", "status", "method", "dataset", "model", "partition", "clients", "rounds", "seed"),
    *("last_round", "best", "device", "created_at", "finished_at", "message"),
)


def _line(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in LISTED} | {"partition": run.partition_label}


def _plain(partition: PartitionRecord) -> dict[str, Any]:
    names = ("id", "hash", "scheme", "label", "dataset", "spec", "classes")
    counts = {"train": partition.train.tolist(), "test": partition.test.tolist()}
    return {**{name: getattr(partition, name) for name in names}, **counts, "left_out": partition.left_out}


def _fields(run: Run, partition: PartitionRecord | None) -> list[tuple[str, object]]:
    from pflbench.report import labels

    spec = run.spec
    best = "" if run.best is None else f", best {100 * run.best:.2f} %"
    settings = {"train": spec["train"], run.method: spec["method"]["hyperparameters"]}
    return [
        ("run", f"{run.id} (key {run.key}, attempt {run.attempt})"),
        ("status", f"{run.status}: {run.message}" if run.message else run.status),
        ("rounds", f"{run.last_round or 0} of {run.rounds}{best}"),
        ("method", f"{run.method} (version {spec['method']['version']})"),
        ("dataset", run.dataset),
        ("partition", f"{run.partition_label}, {run.clients} clients"),
        *([("hash", partition.hash[:16]), ("samples left out", partition.left_out)] if partition else []),
        ("model", run.model if run.parameters is None else f"{run.model} ({run.parameters:,} parameters)"),
        ("seed", run.seed),
        *((name, ", ".join(f"{k}={v}" for k, v in values.items()) or "-") for name, values in settings.items()),
        ("content of the data", labels.recorded_content(run.environment) or "not recorded"),
        *((name, value) for name, value in run.environment.items() if name not in ("notes", "data", "forced")),
        *(("note", text) for text in run.environment.get("notes", {}).values()),
        ("created", run.created_at),
        ("finished", run.finished_at or "-"),
    ]
