"""`pflbench tune`: searches hyperparameters of several methods by validation, each with the same budget."""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pflbench import interrupts
from pflbench.cli import options as o
from pflbench.cli.console import message, print_json, print_records, say
from pflbench.cli.data import fetch_missing
from pflbench.cli.db import opened
from pflbench.cli.help import HelpAll
from pflbench.cli.reports import write_table
from pflbench.cli.run import execution, prepare
from pflbench.cli.sweep_runs import SweepCommand, counted_states, environment, remaining, train
from pflbench.cli.train_runs import KeepGoing, tell_checkpoints, tell_errors
from pflbench.errors import Occupied, UserError

if TYPE_CHECKING:
    from pflbench.sweep.tuning import StudyPlan

_MAIN = {
    **o.MAIN,
    **o.group(
        seed=o.option(int, "Seed of the search. Default: 0."),
        seeds=o.option(str, "Fresh seeds for the best settings: 1-3 or 5,7. Default: the three after --seed.", metavar="LIST"),
    ),
}


@o.taking(
    asked={**_MAIN, **o.PARTITION, **o.TRAINING}, executed=o.without(o.EXECUTION, "trajectory", "force"), workers=o.EXECUTORS
)
def tune(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study.")],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=V,V|NAME=LOW..HIGH",
            help="Values or an interval of METHOD.NAME, or for all methods of lr, momentum, weight-decay, batch-size or "
            "local-epochs; repeatable. Default: the ranges of the papers.",
        ),
    ] = [],  # noqa: B006
    sampler: Annotated[
        Literal["grid", "random", "tpe", "halving"],
        typer.Option(
            help="grid: settings of the grid in a mixed order; random: also draws from intervals; tpe: Optuna's TPE; halving: "
            "many settings with few rounds, the best third with three times the rounds, and so on."
        ),
    ] = "grid",
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Settings that are tried of each method, at most.")] = 12,
    best: Annotated[int, typer.Option(min=1, metavar="K", help="So many settings of each method are run on fresh seeds.")] = 1,
    keep_going: KeepGoing = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is searched and the budget. Train nothing.")] = False,
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
    """Search the hyperparameters of methods by validation accuracy (--val-share), with the same trials and rounds for each.

    Then the best settings and the defaults are run on fresh seeds. The same command continues after an interruption.
    """
    from pflbench.run import trusted
    from pflbench.run.federation_data import load_federation_data
    from pflbench.run.memory_estimate import require_possible
    from pflbench.run.plan import warnings
    from pflbench.sweep.choose_executor import executor_options
    from pflbench.sweep.study import checked_name
    from pflbench.sweep.tuning import begun, define

    if not asked["val_share"]:  # before data are downloaded
        raise UserError("A study chooses by validation accuracy, and no validation data are set aside.", "Add --val-share 0.1.")
    if len(set(asked["datasets"])) > 1:
        raise UserError("A study has one dataset.", "Make a study for each dataset.")
    executor = executor_options(workers)
    fetch_missing(asked["datasets"], [asked["partition"] or ""], data_dir, download and not dry_run, quiet)
    planned = define(o.run_options({**asked, "data_dir": data_dir}), search, sampler, trials, best)
    defaults = [planned.spec(method) for method in planned.methods]
    how = execution(executed)
    if not dry_run:
        prepare(defaults, data_dir, quiet)
        planned = planned.possible(lambda spec: require_possible(spec, load_federation_data(spec, data_dir)))
    for text in (*warnings(defaults), *planned.notes):
        message(f"Note: {text}")
    if dry_run:
        _show_plan(planned, as_json)
        return
    trusted.remember(trusted.wanted(defaults, asked["plugins"], how.checkpoints, executor.words()))
    with opened(db, create=True) as results, ExitStack() as held:
        from pflbench.report.declared import TABLES
        from pflbench.store import locks, studies, sweeps

        tell_checkpoints(results, how)  # an impossible place must not be stored
        try:
            held.enter_context(locks.locked(results, sha256(checked_name(name).encode()).hexdigest()[:16]))
        except Occupied:
            raise UserError(f"Another process is at the study '{name}'.", "Wait for it, or stop it first.") from None
        study, specs = begun(results, name, planned)
        together, retry = max(1, (executor.jobs or 1) // len(planned.methods)), True
        while True:
            stored = {**environment(asked, executed, how, executor, data_dir), "study": study.plain()}
            sweep = sweeps.save(results, name, specs, stored)  # before its runs: another --jobs would suggest others
            _train(SweepCommand(sweep, results, how, executor, data_dir, quiet), keep_going, retry)
            scores, retry = studies.scores(results, study.keys), False
            if study.again:
                break
            study, new = planned.go_on(study, scores, together)
            specs = list({spec.key: spec for spec in (*specs, *new)}.values())
        for method in planned.methods:
            studies.mark(results, study.winner(method, scores).keys, study)
        grid = TABLES["tuned"].load()(results, study=name).grid()
    write_table(grid, "json" if as_json else "text", None)


def _train(asked: SweepCommand, keep_going: bool, retry: bool) -> None:
    """Trains the remaining runs. Ends the command if one is missing then. retry: also those that failed before."""
    from pflbench.store.sweeps import sweep_state

    ahead, _ = remaining(asked, retry)
    if not ahead:
        return
    try:
        stopped = train(asked, ahead, keep_going)
    except KeyboardInterrupt:
        message("Interrupted. The same command continues.")
        raise typer.Exit(interrupts.exit_code()) from None
    if stopped is None:
        message("Repeat this command when they are over.")
        raise typer.Exit
    state = sweep_state(asked.results, ahead)
    tell_errors(state)
    counts = state.counts
    if stopped or counts["finished"] + counts["diverged"] + keep_going * counts["failed"] < len(ahead):
        message(f"{asked.sweep.name}: {counted_states(counts)} The same command continues.")
        raise typer.Exit(2)


def _show_plan(planned: StudyPlan, as_json: bool) -> None:
    """Prints the answer of --dry-run."""
    from pflbench.store.studies import words

    if as_json:
        print_json(planned.definition)
        return
    print_records(planned.records())
    fresh = ", ".join(map(str, planned.definition["seeds"]))
    say(f"Each method has up to {words(planned.definition)}; then its best and its defaults are run with seeds {fresh}.")
