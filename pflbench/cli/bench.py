"""`pflbench bench`: what a round costs on this machine, and whether two measurements of that differ."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pflbench.cli import options as o
from pflbench.cli.console import command_line, message, print_json, print_table
from pflbench.cli.db import opened
from pflbench.cli.progress import data_view
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.store.measurements import Measurement

BOTH = "both"
ENGINES = (BOTH, "loop", "batched", "packed")

app = typer.Typer(invoke_without_command=True, help="Measure what a round costs on this machine, and compare measurements.")

Which = Annotated[str, typer.Argument(metavar="MEASUREMENT", help="Its number, or its name (the newest of that name).")]


@app.callback()
@o.taking(
    measured=o.only("methods", "plugins", methods=["fedavg", "fedala"]),
    setting=o.only("model", "settings", "partition", "clients", "beta"),
    machine=o.only("device", "dtype"),
)
def bench(
    context: typer.Context,
    *,
    measured: o.Given,
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", metavar="NAME", autocompletion=o.completion(o.dataset_names), help="As for `run`.")
    ] = "digits",
    setting: o.Given,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, help="Timed rounds, after two that are not.")] = 5,
    share: Annotated[float, typer.Option(min=0, max=1, help="Take this share of every client's samples.")] = 1.0,
    machine: o.Given,
    engines: Annotated[
        list[str],
        typer.Option(
            "--engine",
            metavar="ENGINE[:WAY]",
            autocompletion=o.completion(lambda: ENGINES),
            help="Repeatable: loop, batched, both; packed: five seeds as one program. A way after it is an arm of its own: "
            "batched:none, batched:graph, batched:groups, batched:search, batched:unfold.",
        ),
    ] = [BOTH],  # noqa: B006
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="A name, to find the measurement by.")] = None,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    as_json: o.Json = False,
) -> None:
    """Measure what a round costs on this machine, by method and executor, and store it; FedAvg is always measured, too.

    One round of each goes in turn, so that a machine that slows down slows all. Compare multiples rather than seconds: of
    FedAvg's rounds, and of the floor, what the round must cost at the machine's own speed in matrix products and copies.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context)
        return
    if share == 0:
        raise UserError("--share 0 leaves nothing to measure.", "Give a share above 0, up to 1.")

    from pflbench.bench.arms import way
    from pflbench.bench.floor import UNTIMED
    from pflbench.bench.measure import measure
    from pflbench.run.arithmetic import require_arithmetic
    from pflbench.run.execution import find_device
    from pflbench.run.plan import plan
    from pflbench.run.setting import load_setting
    from pflbench.store import measurements

    measurements.check_name(name)
    methods = list(dict.fromkeys(["fedavg", *measured["methods"]]))
    asked = {"methods": methods, "datasets": [dataset], "data_dir": data_dir, "rounds": UNTIMED + rounds}
    specs = plan(o.wish({**setting, **machine, **asked}))
    where = find_device(machine["device"])
    named = [one for engine in engines for one in (("loop", "batched") if engine == BOTH else (engine,))]
    ways = [way(one) for one in dict.fromkeys(named)]
    require_arithmetic(where, specs[0].train.dtype)
    for one in ways:
        one.execution(where)
    with data_view() as progress:
        held = load_setting(specs[0], data_dir, progress).cut(share, specs[0].train.batch_size)
    with opened(db, create=True) as results:
        with data_view() as progress:
            found = measure(specs, held, ways, where, rounds, name, share, command_line(), progress)
        stored = measurements.find(results, str(measurements.save(results, found)))
    _show(stored, as_json)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest.")] = 50,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """List the stored measurements, newest first; with --json all that is stored of them."""
    from pflbench.store import measurements

    with opened(db) as engine:
        found = measurements.newest(engine, limit)
    if as_json:
        print_json([asdict(measurement) for measurement in found])
    elif not found:
        message("There are no measurements yet: pflbench bench makes one.")
    else:
        columns = ("measurement", "name", "dataset", "model", "clients", "share", "arms", "rounds", "commit", "device", "created")
        print_table(columns, [_line(measurement) for measurement in found])


@app.command()
def compare(before: Which, after: Which, db: o.Db = o.DEFAULT_DB, as_json: o.Json = False) -> None:
    """Compare two stored measurements by method and executor, and tell a difference from noise."""
    from pflbench.bench import compare as comparing
    from pflbench.store import measurements

    with opened(db) as engine:
        first, second = (measurements.find(engine, which) for which in (before, after))
    found = comparing.compare(first, second)
    for text in comparing.warnings(first, second):
        message(f"Note: {text}")
    if as_json:
        print_json([{**asdict(one), "text": one.text} for one in found])
        return
    rows = [(c.method, c.engine, _seconds(c.before), _seconds(c.after), c.text) for c in found]
    print_table(("method", "executor", f"{before}: s/round", f"{after}: s/round", f"{after} is"), rows)


def _refuse_options_before(context: typer.Context) -> None:
    """Given before a subcommand they would do nothing."""
    given = [name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if given:
        raise UserError(
            f"Options of `bench` stand before `{context.invoked_subcommand}`, which does not know them.",
            f"Options of `{context.invoked_subcommand}` come after it: pflbench bench {context.invoked_subcommand} --help",
        )


def _show(measurement: Measurement, as_json: bool) -> None:
    from pflbench.bench.summary import summaries

    found = summaries(measurement)
    if as_json:
        print_json({**asdict(measurement), "summaries": [asdict(one) for one in found]})
        return
    columns = ("method", "executor", "s/round", "fastest", "slowest", "reception", "evaluation", "update")
    rows = [
        (s.method, s.engine, *map(_seconds, (s.median, s.fastest, s.slowest, s.reception, s.evaluation, s.update)),
         f"{s.times_fedavg:.2f}", f"{s.times_floor:.3g}", f"{s.peak_memory / 1e6:.0f}")
        for s in found
    ]  # fmt: skip
    print_table((*columns, "x FedAvg", "x floor", "peak MB"), rows)
    limits = measurement.ceilings
    tf32 = f" ({limits['tf32'] / 1e9:,.0f} with TF32)" if limits["tf32"] else ""
    product, copied = (f"{(limits[name] or 0) / 1e9:,.3g}" for name in ("flops", "bandwidth"))
    message(f"{measurement.device}: matrix product {product} GFLOP/s{tf32}, copy {copied} GB/s.")
    message(f"Stored as measurement {measurement.id}; pflbench bench compare sets two side by side.")


def _line(measurement: Measurement) -> tuple[object, ...]:
    setting, arms = measurement.setting, measurement.arms
    return (
        measurement.id, measurement.name, setting["dataset"], setting["model"], setting["clients"], setting["share"],
        f"{len(arms)}", f"{len(arms[0].rounds())}", measurement.environment["commit"], measurement.device, measurement.created_at,
    )  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value:.3g}"
