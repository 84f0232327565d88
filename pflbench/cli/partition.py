"""`pflbench partition`: the samples of each client."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_json, print_table
from pflbench.cli.db import opened
from pflbench.cli.progress import data_view
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.run.options import RunOptions
    from pflbench.store.partitions import PartitionRecord

# A class is a column up to here; more do not fit a screen, and each client holds few of them.
MOST_COLUMNS = 20

app = typer.Typer(help="Show how data are partitioned among clients.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """With a callback, Typer keeps `show` a command of its own."""


@app.command()
@o.taking(asked={"datasets": o.MAIN["datasets"], **o.PARTITION})
def show(
    asked: o.Given,
    stored: Annotated[
        str | None,
        typer.Option("--hash", metavar="HASH", help="A stored partition, by its hash; the beginning suffices."),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="The partition of a stored run.")] = None,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    as_json: o.Json = False,
) -> None:
    """Print the client x class table of a new or stored partition."""
    wanted = o.run_options({**asked, "data_dir": data_dir})
    if stored is None and run is None:
        shown = _made(wanted)
    elif wanted != o.run_options({"data_dir": data_dir}) or (stored and run):
        raise UserError("--hash and --run stand alone.", "They name a stored partition; leave the other options out.")
    else:
        shown = [_stored(stored, run, db)]
    if as_json:
        print_json([_plain(one) for one in shown])
    else:
        for one in shown:
            _print(one)


def _made(wanted: RunOptions) -> list[PartitionRecord]:
    from pflbench import data
    from pflbench.run.federation_data import load_federation_data
    from pflbench.run.plan import plan

    made = []
    # A partition does not depend on the method; any will do to complete the specification.
    for spec in plan(replace(wanted, methods=("local",))):
        if text := data.remark(spec.data, wanted.data_dir):
            message(f"Note: {text}")
        with data_view() as progress:
            made.append(load_federation_data(spec, wanted.data_dir, progress).record)
    return made


def _stored(stored: str | None, run: str | None, db: str) -> PartitionRecord:
    from pflbench.store import partitions, runs

    with opened(db) as engine:
        wanted = stored if stored is not None else runs.find(engine, str(run)).partition
        if wanted is None:
            raise UserError(f"Run {run} has no partition yet.", "It is stored when the run starts.")
        return partitions.find(engine, wanted)


def _plain(one: PartitionRecord) -> dict[str, Any]:
    counts = {"train": one.train.tolist(), "test": one.test.tolist()}
    said = {"dataset": one.dataset, "partition": one.label, "hash": one.hash, "left_out": one.left_out}
    return {**said, "classes": list(one.classes), **counts}


def _print(one: PartitionRecord) -> None:
    """Train and test samples together, as in the paper's figures; the totals apart."""
    message(f"{one.dataset}, {one.label}, {len(one.train)} clients, hash {one.hash[:16]}")
    if one.left_out:
        message(f"{one.left_out:,} samples are left out; no client gets them.")
    wide = len(one.classes) > MOST_COLUMNS
    rows = []
    for client, (train, test) in enumerate(zip(one.train, one.test, strict=True)):
        both = train + test
        held = [" ".join(f"{name}:{n}" for name, n in zip(one.classes, both, strict=True) if n)] if wide else both
        rows.append((client, *held, train.sum(), test.sum(), both.sum()))
    print_table(("client", *(["class:samples"] if wide else one.classes), "train", "test", "total"), rows)
