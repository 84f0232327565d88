"""`pflbench runs`: what the database holds."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_fields, print_json, print_table
from pflbench.cli.db import opened
from pflbench.errors import UserError
from pflbench.store.files import write_array

if TYPE_CHECKING:
    from pflbench.store.read import PartitionInfo, RunDetail

app = typer.Typer(help="List, show and remove runs.", no_args_is_help=True)


def _statuses() -> list[str]:
    from pflbench.store.schema import STATUSES

    return list(STATUSES)


Run = Annotated[str, typer.Argument(metavar="RUN", help="Its number, or (the beginning of) its key.")]
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Numbers, or (beginnings of) keys.")]


@app.command("list")
def list_(
    method: Annotated[str | None, typer.Option("--method", "-m", autocompletion=o.complete_method)] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", "-d", autocompletion=o.completion(o.dataset_names), help="As in the list, e.g. agnews:test."),
    ] = None,
    status: Annotated[str | None, typer.Option(autocompletion=o.completion(_statuses))] = None,
    key: Annotated[str | None, typer.Option(help="(Beginning of) a key.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest.")] = 50,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """List runs, newest first."""
    from pflbench.store import read

    with opened(db) as engine:
        found = read.runs(engine, method=method, dataset=dataset, status=status, key=key, limit=limit + 1)
    shown = found[:limit]
    if as_json:
        print_json([asdict(info) for info in shown])
    elif not shown:
        message("No such runs.")
    else:
        columns = (
            "run",
            "key",
            "status",
            "method",
            "dataset",
            "partition",
            "clients",
            "seed",
            "rounds",
            "best %",
            "created",
        )
        rows = [
            (i.id, i.key, i.status, i.method, i.dataset, i.partition, i.clients, i.seed,
             f"{i.last_round or 0}/{i.rounds}", "" if i.best is None else f"{100 * i.best:.2f}", i.created_at)
            for i in shown
        ]  # fmt: skip
        print_table(columns, rows)
    if len(found) > limit:
        message(f"There are more; --limit {2 * limit} shows more of them.")


@app.command()
def show(
    run: Run,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="So many of the last rounds.")] = 10,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Show one run: specification, environment, partition and last rounds."""
    from pflbench.store import read

    with opened(db) as engine:
        detail = read.run(engine, run, last=last)
    if as_json:
        print_json(_plain(detail))
        return
    print_fields(_fields(detail))
    columns = (
        "accuracy",
        "accuracy_mean",
        "accuracy_std",
        "test_loss",
        "train_loss",
        "seconds_update",
        "seconds_evaluate",
    )
    rows = [[row["round"], *(None if row[c] is None else f"{row[c]:.4g}" for c in columns)] for row in detail.last_rounds]
    if rows:
        print()
        print_table(("round", *(c.replace("_", " ") for c in columns)), rows)


@app.command()
def artifact(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `runs show` lists it, e.g. traffic or ala_weights.")],
    round_: Annotated[int | None, typer.Option("--round", "-r", help="Default: the newest.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.npy", help="Write it as NumPy's .npy.")] = None,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Print an array that a run left behind as JSON, or write it to a file."""
    from pflbench.store import read

    with opened(db) as engine:
        array = read.artifact(engine, read.run(engine, run, last=1).info.id, name, round_)
    if output is None:
        print_json({"name": name, "shape": array.shape, "dtype": str(array.dtype), "values": array.tolist()})
        return
    write_array(output, array)
    message(f"Wrote {output}: {array.dtype} {list(array.shape)}.")


@app.command()
def rm(
    runs: Runs,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Remove runs with all their rounds. It asks first."""
    from pflbench.run import checkpoint
    from pflbench.store import locks, read, write
    from pflbench.store.failures import sqlite_path

    with opened(db) as engine:
        found = {info.id: info for info in (read.run(engine, run, last=1).info for run in runs)}
        for info in found.values():
            message(
                f"run {info.id}: {info.method}, {info.dataset}, seed {info.seed}, {info.status}, round {info.last_round or 0}"
            )
        if not yes:
            _ask(len(found))
        for run_id in found:
            write.remove_run(engine, run_id)
            checkpoint.discard(locks.folder(sqlite_path(engine.url)), run_id)
    message(f"Removed {len(found)} run(s).")


def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise UserError("Nothing was removed: there is no terminal to ask on.", "Add --yes to remove without being asked.")
    if not typer.confirm(f"Remove {count} run(s) with all their rounds?", err=True):
        message("Nothing was removed.")
        raise typer.Exit(1)


def _plain(detail: RunDetail) -> dict[str, Any]:
    plain = asdict(detail)
    if detail.partition is not None:
        plain["partition"] |= {"train": detail.partition.train.tolist(), "test": detail.partition.test.tolist()}
    return plain


def _fields(detail: RunDetail) -> list[tuple[str, object]]:
    from pflbench.report import labels

    info, spec = detail.info, detail.spec
    best = "" if info.best is None else f", best {100 * info.best:.2f} %"
    settings = {"train": spec["train"], info.method: spec["method"]["hyperparameters"]}
    fields: list[tuple[str, object]] = [
        ("run", f"{info.id} (key {info.key}, attempt {info.attempt})"),
        ("status", f"{info.status}: {info.message}" if info.message else info.status),
        ("rounds", f"{info.last_round or 0} of {info.rounds}{best}"),
        ("method", f"{info.method} (version {spec['method']['version']})"),
        ("dataset", info.dataset),
        (
            "partition",
            f"{info.partition}, {info.clients} clients" + (_of_partition(detail.partition) if detail.partition else ""),
        ),
        ("model", info.model if detail.parameters is None else f"{info.model} ({detail.parameters:,} parameters)"),
        ("seed", info.seed),
        *((name, ", ".join(f"{k}={v}" for k, v in values.items()) or "-") for name, values in settings.items()),
        ("content of the data", labels.recorded_content(detail.environment) or "not recorded"),
        *((name, value) for name, value in detail.environment.items() if name not in ("notes", "data")),
        *(("note", text) for text in detail.environment.get("notes", {}).values()),
        ("created", info.created_at),
        ("finished", info.finished_at or "-"),
    ]
    if detail.series:
        fields.append(("series", ", ".join(detail.series)))
    if detail.artifacts:
        fields.append(("artifacts", ", ".join(sorted({a.name for a in detail.artifacts}))))
    return fields


def _of_partition(partition: PartitionInfo) -> str:
    left_out = f", {partition.left_out:,} samples left out" if partition.left_out else ""
    return f", hash {partition.hash[:16]}{left_out}"
