"""`pflbench export` and `pflbench import`: rows for other programs, runs of other databases, results of PFLlib."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from pflbench.cli import options as o
from pflbench.cli.console import error, message, print_json, say
from pflbench.cli.db import opened, opened_or_empty
from pflbench.cli.progress import bars
from pflbench.cli.reports import FILTERS, asked, file_format, found_runs
from pflbench.errors import UserError
from pflbench.store.files import replacing

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pflbench.store.exchange.merge import Outcome

_WORDS = {
    "new": "new",
    "attempt": "as the next attempt of a key",
    "same": "here already",
    "behind": "left out, unfinished here as well",
    "conflict": "in conflict",
}

_STATES = {"new": "a new reference series", "same": "here already", "replaced": "replaces what was said of this file before"}


@o.taking(which=FILTERS)
def export(
    kind: Annotated[Literal["runs", "rounds", "clients", "new-clients", "measures"], typer.Argument(help="Content of the rows.")],
    *,
    format: Annotated[
        Literal["csv", "parquet", "json"] | None,
        typer.Option("--format", "-f", help="Default: by the suffix of the file, else csv."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
    which: o.Given,
    db: o.Db = o.DEFAULT_DB,
) -> None:
    """Write runs, rounds or clients' results as CSV, Parquet or JSON, for other programs.

    Accuracies are fractions in [0, 1], as stored. Loss of a client: summed over its test samples. What was not measured is empty.
    """
    from pflbench.store.exchange import export as store

    form = file_format(format, output, {f".{name}": name for name in ("csv", "parquet", "json")}, "csv")
    if output is None and form == "parquet" and sys.stdout.isatty():
        raise UserError("Parquet is not for a terminal.", f"Give a file: -o {kind}.parquet")
    with opened(db) as engine:
        chosen = {run.id for run in found_runs(engine, which)} if asked(which) else None
        found = store.rows(engine, kind, chosen)
        with nullcontext(sys.stdout.buffer) if output is None else replacing(output) as out:
            count = store.write(found, form, out)
    if not count:
        hint = " `run --metrics-every` computes them." if kind == "measures" else ""
        message(f"No rows{'' if output is None else f' in {output}'}: there are no such {kind.replace('-', ' ')}.{hint}")
    elif output is not None:
        message(f"Wrote {output}: {count:,} row{'s' * (count != 1)}.")


def import_(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Databases of pflbench, or result files of PFLlib (.h5).")
    ],
    on_conflict: Annotated[
        Literal["skip", "attempt"],
        typer.Option(help="A stored run with other numbers: skip it, or add it as the next attempt."),
    ] = "skip",
    dataset: Annotated[
        str | None, typer.Option("--dataset", "-d", metavar="NAME", help=".h5: if the file's name does not contain it.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", metavar="NAME", help=".h5: if the file's name does not contain it.")
    ] = None,
    eval_gap: Annotated[
        int | None,
        typer.Option(metavar="ROUNDS", min=1, max=10**6, help=".h5: PFLlib's eval_gap, rounds between evaluations. Default: 1."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be imported; change nothing.")] = False,
    db: o.Db = o.DEFAULT_DB,
    as_json: o.Json = False,
) -> None:
    """Import runs and studies of other databases, and PFLlib's results as reference series.

    Every row of another database is checked first: one that is wrong is named, and nothing of that file is taken.

    Runs are the same if their keys are. One that is here is not copied; times, memory and observed arrays may differ. A conflict
    is one that is here with other numbers: it is named, and exit code 2 says so when all else is done.
    """
    said = asked({"dataset": dataset, "method": method, "eval_gap": eval_gap})
    results: list[dict[str, Any]] = []
    with opened_or_empty(db) if dry_run else opened(db, create=True) as engine:
        for path in paths:
            try:
                results.append(_import_file(engine, path, on_conflict, dry_run, said))
            except UserError as refused:
                error(refused)
                results.append({"path": str(path), "error": refused.message})
                continue
            if not as_json:
                say(_summary(results[-1], dry_run), flush=True)
    if as_json:
        print_json(results)
    if any("error" in result or result.get("conflict") for result in results):
        raise typer.Exit(2)


def _import_file(engine: Engine, path: Path, on_conflict: str, dry_run: bool, said: dict[str, Any]) -> dict[str, Any]:
    """Imports a file and describes the result. said: the options about result files of PFLlib."""
    from pflbench.store import references
    from pflbench.store.exchange import pfllib

    if not path.is_file() and (path.is_dir() or not path.exists()):
        raise UserError(f"There is no file {path}.", "Name databases of pflbench, or result files of PFLlib (.h5).")
    if pfllib.is_hdf5(path):
        found = pfllib.load(path, **said)
        state = references.save(engine, found, renamed=bool(said), dry_run=dry_run)
        facts = {name: getattr(found, name) for name in ("dataset", "method", "algorithm", "goal", "times")}
        numbers = {"evaluations": len(found.round), "last_round": int(found.round[-1]), "best": float(found.accuracy.max())}
        return {"path": str(path), "kind": "pfllib", "state": state, **facts, **numbers}
    if said:
        raise UserError(f"{path} is no result file of PFLlib.", f"Leave out --{next(iter(said)).replace('_', '-')}.")
    return _merged(engine, path, on_conflict, dry_run)


def _merged(engine: Engine, path: Path, on_conflict: str, dry_run: bool) -> dict[str, Any]:
    from pflbench.store import references
    from pflbench.store.exchange import merge

    outcomes: list[Outcome] = []
    with merge.opened(path, engine) as other:
        with bars() as progress:
            for outcome in merge.runs(engine, other, on_conflict=on_conflict, dry_run=dry_run):
                outcomes.append(outcome)
                if progress is not None:
                    progress(path.name, len(outcomes), len(other.runs))
        series = references.merge(engine, other.engine, dry_run=dry_run)
        studies = merge.studies(engine, other, dry_run=dry_run)
    for outcome in outcomes:
        _tell(path.name, outcome)
    if unfinished := [one for one in outcomes if one.what in ("new", "attempt") and not one.run.ended]:
        numbers = ", ".join(str(one.run.id) for one in unfinished)
        message(f"Unfinished: run {numbers} of {path.name}. Checkpoints are not imported: `pflbench run` starts over.")
    counts = Counter(outcome.what for outcome in outcomes)
    listed = [_record(outcome) for outcome in outcomes]
    totals = {what: counts[what] for what in get_args(merge.What)}
    return {"path": str(path), "kind": "pflbench", **totals, "references": series, "studies": studies, "runs": listed}


def _record(outcome: Outcome) -> dict[str, Any]:
    run = outcome.run
    about = {name: getattr(run, name) for name in ("id", "key", "status", "method", "dataset", "seed")}
    about |= {"partition": run.partition_label, "last": outcome.last}
    difference = outcome.difference and asdict(outcome.difference)
    return {"run": about, "what": outcome.what, "compared": outcome.compared, "difference": difference, "here": outcome.here}


def _tell(name: str, outcome: Outcome) -> None:
    run = outcome.run
    which = f"run {run.id} of {name} ({run.method}, {run.dataset}, {run.partition_label}, seed {run.seed}, key {run.key})"
    if (found := outcome.difference) is not None:
        there, here = ("none" if value is None else value for value in (found.there, found.here))
        kept = "Left out; --on-conflict attempt adds it." if outcome.what == "conflict" else "Added as the key's next attempt."
        where = f"in round {found.round}, in {found.what}: {there} there, {here} here"
        message(f"Conflict: {which} and run {outcome.compared} here differ first {where}. {kept}")
    elif outcome.what == "behind":
        message(f"Left out: {which}, unfinished after round {outcome.last}: run {outcome.compared} here is, too.")


def _summary(result: dict[str, Any], dry_run: bool) -> str:
    name = Path(result["path"]).name + (" (dry run)" if dry_run else "")
    if result["kind"] == "pfllib":
        series = f"PFLlib's {result['algorithm']} on {result['dataset']}, rounds 0 to {result['last_round']}"
        return f"{name}: {series}, best {100 * result['best']:.2f} %: {_STATES[result['state']]}"
    counts = [f"{result[what]} run{'s' * (result[what] != 1)} {words}" for what, words in _WORDS.items() if result[what]]
    if result["references"]:
        counts.append(f"{len(result['references'])} reference series")
    if result["studies"]:
        counts.append(f"stud{'ies' if len(result['studies']) > 1 else 'y'} of tune: {', '.join(result['studies'])}")
    return f"{name}: {', '.join(counts) or 'nothing to import'}"
