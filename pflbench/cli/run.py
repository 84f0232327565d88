"""`pflbench run`: plans runs, trains them and prints their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.ahead import Ahead, forecast_words, look_ahead
from pflbench.cli.checkup import note_unchecked
from pflbench.cli.console import command_line, duration, message, print_json, print_records, say
from pflbench.cli.data import fetch_missing
from pflbench.cli.db import opened
from pflbench.cli.help import HelpAll
from pflbench.cli.progress import data_view, differing_settings, named
from pflbench.cli.train_runs import Jobs, KeepGoing, train_all
from pflbench.errors import UserError

if TYPE_CHECKING:
    import sqlalchemy

    from pflbench.run.execution import Execution
    from pflbench.run.follow import Follow
    from pflbench.run.memory_estimate import Footprint
    from pflbench.run.options import RunOptions
    from pflbench.spec import RunSpec
    from pflbench.store.runs import Run
    from pflbench.store.studies import StoredStudy
    from pflbench.store.sweeps import SweepState


@o.taking(asked={**o.MAIN, **o.PARTITION, **o.TRAINING, **o.BEHAVIOUR}, executed=o.EXECUTION)
def run(
    asked: o.Given,
    executed: o.Given,
    params: Annotated[
        str | None,
        typer.Option(
            metavar="best:STUDY",
            help="Take each method's best hyperparameters of a study of `pflbench tune`, and the learning rate if searched.",
        ),
    ] = None,
    db: o.Db = o.DEFAULT_DB,
    data_dir: o.DataDir = o.DEFAULT_DATA,
    download: o.Download = True,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the runs, their keys and what they take; --json also their specifications. Train nothing."
        ),
    ] = False,
    jobs: Jobs = 1,
    keep_going: KeepGoing = False,
    quiet: o.Quiet = False,
    as_json: o.Json = False,
    help_all: HelpAll = False,
) -> None:
    """Train methods on datasets, and store every round and every client in the results database.

    Defaults are the paper's: 2,000 rounds, 20 clients, Dir(0.1), batches of 10, one local epoch, the model and learning rate of
    the dataset. A finished run is not run again; an interrupted one resumes from its last checkpoint.
    """
    from pflbench import data

    _require_known(asked)
    from pflbench.run.plan import preset_notes, warnings
    from pflbench.sweep.choose_executor import ExecutorOptions, at_a_time
    from pflbench.sweep.grid import of_run

    wanted = o.run_options({**asked, "data_dir": data_dir})
    fetch_missing(wanted.datasets, [wanted.partition or ""], data_dir, download and not dry_run, quiet)
    study, specs = (None, of_run(wanted)) if params is None else _of_study(params, wanted, db)
    remarks = (data.remark(source, data_dir) for source in dict.fromkeys(spec.data for spec in specs))
    for text in (*preset_notes(wanted), *warnings(specs), *filter(None, remarks)):
        message(f"Note: {text}")
    how = execution(executed)
    if dry_run:
        from pflbench.reproduce.progress import lacking
        from pflbench.run.before_start import footprints, shortages

        with data_view(quiet) as progress:
            needed = footprints(specs, data_dir, how, progress)
        for text in shortages(specs, needed):
            message(f"Note: {text}")
        if as_json:
            for reason in lacking(specs, data_dir).values():
                message(f"Note: {reason.message}")
            planned = zip(specs, needed, strict=True)
            print_json([{"key": s.key, "memory": n and n.plain(), "spec": s.model_dump(mode="json")} for s, n in planned])
            return
        _show_plan(specs, needed, look_ahead(specs, db, data_dir, how, ExecutorOptions(jobs=jobs)))
        return

    from pflbench.run import trusted
    from pflbench.run.arithmetic import require_arithmetic
    from pflbench.run.device import find_device
    from pflbench.store import studies
    from pflbench.store.failures import patiently
    from pflbench.store.sweeps import last_ended, sweep_state
    from pflbench.sweep.run_queue import RunQueue

    require_arithmetic(find_device(how.device), specs[0].train.dtype)
    prepare(specs, data_dir, quiet)
    trajectory, force = executed["trajectory"], executed["force"]
    client = None if trajectory is None else follow_client(trajectory, specs, data_dir)
    how = replace(how, follow=client)
    note_unchecked(how, quiet)
    done: dict[str, dict[str, Any]] = {}

    try:
        with opened(db, create=True) as results:
            names, settings = named(specs), differing_settings(specs)
            finished = set() if force else set(patiently(partial(sweep_state, results, specs)).keys("finished"))
            ahead = [spec for spec in specs if spec.key not in finished]
            places = at_a_time(ExecutorOptions(jobs=jobs), ahead, data_dir, how) or 1
            if not quiet:
                _tell_ahead(specs, results, data_dir, how, force, places)

            def report(state: SweepState) -> None:
                for key in state.keys("finished", "diverged"):
                    found = state.runs[key]
                    if found is None or key in done:
                        continue
                    if study:
                        patiently(partial(studies.mark, results, [key], study))
                    done[key] = row = patiently(partial(_result, results, found, settings[key]))
                    if key in finished:
                        message(f"{names[key]}: run {row['run']} is finished already; --force runs it anew.")
                    if not as_json:
                        say(_line(row), flush=True)

            plugins = tuple(path.absolute() for path in asked["plugins"])
            trusted.remember(trusted.python_files(specs, plugins))
            repeated = patiently(partial(last_ended, results, list(names))) if force else {}
            queue = RunQueue(tuple(specs), results.url, data_dir, how, plugins, repeated=repeated, keep_going=keep_going)
            whole = train_all(queue, results, places, quiet, report)
    finally:
        if as_json:
            print_json(list(done.values()))
    if not whole:
        raise typer.Exit(2)


def _of_study(params: str, wanted: RunOptions, db: str) -> tuple[StoredStudy, list[RunSpec]]:
    """The study that --params names, and the runs with its best settings."""
    from pflbench.store import studies
    from pflbench.sweep.tuning import with_best

    kind, colon, name = params.partition(":")
    if kind != "best" or not (colon and name):
        raise UserError(f"--params {params}: expected best:STUDY.", "`pflbench table tuned` shows the studies.")
    with opened(db) as results:
        study = studies.find(results, name)
        return study, with_best(wanted, study, studies.scores(results, study.keys))


def _require_known(asked: o.Given) -> None:
    """Raises UserError for unknown names of methods, datasets and models, before torch is imported: that takes seconds."""
    from pflbench import data, methods, models

    known = methods.names(with_ala=True)
    for name in map(methods.in_any_case, asked["methods"]):
        if name not in known:
            methods.load(name)
    for text in (*asked["datasets"], *filter(None, [asked["model"]])):
        if not {":", "/", "."} & set(text):  # else it is one's own
            (data.named if text in asked["datasets"] else models.find)(text)


def _show_plan(specs: Sequence[RunSpec], needed: Sequence[Footprint | None], ahead: Ahead) -> None:
    """Prints a line for each run, and what all of them take."""
    from pflbench.run.memory_estimate import readable

    settings = differing_settings(specs)
    records = [
        {
            "method": f"{spec.method.name} ({settings[spec.key]})" if settings[spec.key] else spec.method.name,
            "dataset": spec.data.label,
            "partition": spec.partition.label,
            "seed": spec.seed,
            "rounds": spec.train.rounds,
            "state": ahead.state.states[spec.key],
            "memory": readable(need.total) if need else None,
            "key": spec.key,
        }
        for spec, need in zip(specs, needed, strict=True)
    ]
    print_records(records)
    ahead.show()


def _tell_ahead(
    specs: Sequence[RunSpec], results: sqlalchemy.Engine, data_dir: Path, how: Execution, force: bool, places: int
) -> None:
    """Prints time, memory and disk of long runs, and a quicker alternative."""
    from pflbench.reproduce.forecast import forecast
    from pflbench.store.failures import patiently

    found = None if force else patiently(lambda: forecast(specs, results, data_dir, how, message))
    if found is None:
        return
    runs = f"{found.runs} run{'s' * (found.runs > 1)} ahead" + (f", {places} at a time" if places > 1 else "")
    message(f"Note: {runs}, {forecast_words(found, places)}.")
    names = " ".join(f"-m {name}" for name in dict.fromkeys(spec.method.name for spec in specs))
    rounds = sum(spec.train.rounds for spec in specs) / len(specs)
    fewer = f" --rounds 20 takes about {duration(found.seconds * 20 / rounds / places)}." if found.seconds and rounds > 20 else ""
    on_others = any(spec.data.name != "digits" for spec in specs)
    digits = f" On the embedded digits, in seconds: pflbench run {names} -d digits --rounds 20" if on_others else ""
    if fewer or digits:
        message(f"Quick:{fewer}{digits}")


def execution(given: o.Given) -> Execution:
    """The options of the panel "Execution". Raises UserError for options that exclude each other."""
    from pflbench.run.device import checked
    from pflbench.run.execution import Execution

    how = Execution(**{name: given[name] for name in vars(Execution()) if given.get(name) is not None})
    return checked(replace(how, command=command_line(how.record_host)))


def prepare(specs: Sequence[RunSpec], data_dir: Path, quiet: bool) -> None:
    """Loads all data, so that errors show before the first run, and prints what a user may not expect of them."""
    from pflbench.run.before_start import require_runnable

    with data_view(quiet) as progress:
        notes = require_runnable(specs, data_dir, progress)
    for note in notes:
        message(f"Note: {note}")


def follow_client(text: str, specs: Sequence[RunSpec], data_dir: Path) -> Follow:
    """Parses --trajectory, checks it for every run, and prints the size of the models."""
    from rich.filesize import decimal

    from pflbench.run.before_start import trajectory_bytes
    from pflbench.run.follow import parse

    client = parse(text)
    message(f"Note: --trajectory stores up to {decimal(trajectory_bytes(client, specs, data_dir))} with each run.")
    return client


def _result(results: sqlalchemy.Engine, found: Run, settings: str) -> dict[str, Any]:
    """settings: how the run differs from others of the command."""
    from pflbench.store import rounds

    newest = rounds.newest_rows(results, found.id, 1)
    names = ("key", "status", "method", "dataset", "seed", "best", "message")
    return {
        "run": found.id,
        **{name: getattr(found, name) for name in names},
        "settings": settings,
        "partition": found.partition_label,
        "rounds": found.last_round,
        "last": newest[0]["accuracy"] if newest else None,
    }


def _line(row: dict[str, Any]) -> str:
    accuracies = ", ".join(f"{name} {100 * row[name]:.2f} %" for name in ("best", "last") if row[name] is not None)
    method = f"{row['method']} ({row['settings']})" if row["settings"] else row["method"]
    where = f"{method}  {row['dataset']}  {row['partition']}  seed {row['seed']}"
    rounds = f"{row['rounds'] or 0} round{'s' * (row['rounds'] != 1)}"
    return f"run {row['run']}  {where}  {row['status']} after {rounds}  {accuracies}".rstrip()
