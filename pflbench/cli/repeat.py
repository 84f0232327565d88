"""`runs reproduce`, `runs bundle` and `runs verify`: runs that others can repeat."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message, print_json, say
from pflbench.cli.db import opened
from pflbench.cli.progress import followed
from pflbench.cli.run import execution

if TYPE_CHECKING:
    from pflbench.run.repeat import Repeated, Watch
    from pflbench.run.training import Progress
    from pflbench.spec import RunSpec
    from pflbench.store.runs import Run

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Number, or key (its beginning suffices).")]
_OF_THE_RECORD = o.group(
    "Execution",
    device=o.option(
        str,
        "auto: the kind that is recorded, a CPU or a GPU.",
        default="auto",
        complete=lambda: ("auto", "cpu", "cuda"),
        metavar="auto|cpu|cuda[:N]",
    ),
    engine=o.option(
        Literal["auto", "loop", "batched"], "auto: the executor that is recorded, on a device of that kind.", default="auto"
    ),
)
EXECUTED = {**_OF_THE_RECORD, **{name: o.EXECUTION[name] for name in ("workers", "deterministic")}}
Files = Annotated[
    list[Path],
    typer.Option("--plugin", metavar="FILE.py", help="A Python file of the run's that may be executed; repeatable."),
]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="NUMBER",
        help="Numbers are equal if they differ by at most this, or this share of the larger one, e.g. 1e-6 for another "
        "machine. 0: bit for bit.",
    ),
]


def _count(text: str | int) -> int | None:
    if text == "all":
        return None
    with suppress(ValueError):
        if int(text) >= 0:
            return int(text)
    raise typer.BadParameter(f"'{text}' is neither all nor a number, at least 0")


@o.taking(executed=EXECUTED)
def reproduce(
    run: RunArgument,
    executed: o.Given,
    rounds: Annotated[int | None, typer.Option(min=0, metavar="N", help="Train rounds 0 to N only.")] = None,
    tolerance: Tolerance = 0.0,
    files: Files = [],  # noqa: B006
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Train a stored run again and compare every round, client and series. Exit code 2 at the first difference.

    The database stays as it is. Compared are the partition and every number that the specification determines; times are not.
    """
    from pflbench.plugins.methods import plugged_in
    from pflbench.run import repeat
    from pflbench.store import runs

    with opened(db) as engine:
        found = runs.find(engine, run)
        (spec,) = repeat.specifications([found], engine.url, files)
        with plugged_in(repeat.of_methods(files, [spec])):
            how, watch = execution(executed), _watch(found, spec, quiet)
            result = repeat.repeat(engine, found, spec, data_dir, how, last=rounds, tolerance=tolerance, watch=watch)
    if as_json:
        print_json(asdict(result))
    else:
        _tell(found, result, tolerance)
    if result.difference:
        raise typer.Exit(2)


def bundle(
    run: Annotated[list[str], typer.Argument(metavar="RUN...", help="Numbers, or keys (their beginnings suffice).")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="A new file.")],
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Write runs to a file that others can verify: specifications, versions, partitions, all rows, and their hashes.

    The file is a database, also for `table`, `plot` and `import`. The printed hash covers all runs: publish it with the results.
    """
    from pflbench.store import runs
    from pflbench.store.exchange import bundle

    with opened(db) as engine:
        found = list({one.id: one for one in (runs.find(engine, text) for text in run)}.values())
        digest = bundle.write(engine, found, output)
    if as_json:
        print_json({"path": str(output), "runs": [one.id for one in found], "sha256": digest})
    else:
        say(f"{output}: {len(found)} run{'s' * (len(found) != 1)}, SHA-256 {digest}")
    for one in found:
        if not one.ended:
            message(f"Unfinished: run {one.id}, {one.status} after round {one.last_round} of {one.rounds}.")


@o.taking(executed=EXECUTED)
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle of runs.")],
    executed: o.Given,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N|all",
            parser=_count,
            help="Draw N rounds of each run, and train up to the largest of them. 0: check the hashes only.",
        ),
    ] = 3,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draw. Default: a new one, which is printed.")] = None,
    tolerance: Tolerance = 0.0,
    files: Files = [],  # noqa: B006
    data_dir: o.DataDir = o.DEFAULT_DATA,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
) -> None:
    """Check a bundle: hashes, then `db check`'s rules, then train its runs again and compare. Exit code 2 for a difference.

    Training begins at round 0, since later states are not in a bundle. Every round up to the largest drawn one is compared.
    """
    from pflbench.plugins.methods import plugged_in
    from pflbench.run import repeat
    from pflbench.store.exchange import bundle

    seed = secrets.randbelow(2**32) if seed is None else seed
    draw, results = random.Random(seed), []
    with bundle.opened(file) as found:
        runs = found.content.runs
        changed = [f"run {number} is not as it was bundled: its hash is another" for number in found.changed]
        if not as_json:
            say(f"{file}: {len(runs)} run{'s' * (len(runs) != 1)}, SHA-256 {found.digest}")
            say("\n".join(f"{line[0].upper()}{line[1:]}." for line in changed) or "Every run is as it was bundled.")
        if rounds != 0:
            if rounds is not None and not as_json:
                say(f"Rounds are drawn by --seed {seed}.")
            specs = repeat.specifications(runs, found.content.url, files)
            with plugged_in(repeat.of_methods(files, specs)):
                for run, spec in zip(runs, specs, strict=True):
                    last = None if rounds is None else repeat.drawn(run, rounds, draw)
                    how, watch, engine = execution(executed), _watch(run, spec, quiet), found.content.engine
                    result = repeat.repeat(engine, run, spec, data_dir, how, last=last, tolerance=tolerance, watch=watch)
                    results.append(result)
                    if not as_json:
                        _tell(run, result, tolerance)
    if as_json:
        about = {"path": str(file), "sha256": found.digest, "seed": seed, "changed": list(found.changed)}
        print_json({**about, "runs": list(map(asdict, results))})
    if changed or any(result.difference for result in results):
        raise typer.Exit(2)


def _watch(run: Run, spec: RunSpec, quiet: bool) -> Watch:
    def watch(steps: Iterator[Progress]) -> Iterator[Progress]:
        numbered = ((0, replace(step, run_id=run.id)) for step in steps)
        for _, step in followed([spec], quiet)([spec], numbered):
            assert not isinstance(step, Exception)
            yield step

    return watch


def _tell(run: Run, result: Repeated, tolerance: float) -> None:
    """Prints the result of a comparison, and what is not as it was recorded."""
    from pflbench.report import labels

    if result.changed:
        told = ", ".join(f"{name} {now} (was {before})" for name, (before, now) in result.changed.items())
        message(f"Note: run {run.id}, not as recorded: {told}.")
    name = f"Run {run.id}, {labels.method_title(run.method, run.title)} on {labels.dataset_title(run.spec)}"
    if result.difference:
        say(f"{name}, differs. First in {result.difference}.", flush=True)
        return
    rounds = f"all {result.last + 1} rounds" if result.last == run.rounds else f"rounds 0 to {result.last} of {run.rounds}"
    again = ", and it diverges again" if result.diverged else ""
    how = f"equal within {tolerance:g}" if tolerance else "equal bit for bit"
    say(f"{name}: {rounds} and {result.clients:,} client rows are {how}{again}.", flush=True)
