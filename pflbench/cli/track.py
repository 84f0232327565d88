"""`pflbench track`: sends runs to TensorBoard, MLflow or Weights & Biases, also while they train."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflbench.cli import options as o
from pflbench.cli.console import message
from pflbench.cli.db import opened
from pflbench.cli.reports import FILTERS, found_runs
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.track.deliver import Tracker

app = typer.Typer(
    help="Send runs to TensorBoard, MLflow or Weights & Biases; with --follow also while they train.",
    no_args_is_help=True,
)


_HOW = o.group(
    follow=o.flag("Continue with new rounds until all runs have ended.", "--follow"),
    every=o.option(float, "--follow: time between two looks at the database.", default=5.0, metavar="SECONDS", min=0.1),
    patience=o.option(float, "--follow: time to wait for the next run when none trains.", default=60.0, metavar="SECONDS", min=0),
    db=(o.Db, o.DEFAULT_DB),
)


@app.command()
@o.taking(which=FILTERS, how=_HOW)
def tensorboard(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for `tensorboard --logdir DIR`; created if needed.")],
    *,
    which: o.Given,
    how: o.Given,
) -> None:
    """Write TensorBoard's event files, a folder for each run. Repeating the command adds only new rounds."""
    _track("tensorboard", lambda module: module.TensorBoard(folder), which, **how)


@app.command()
@o.taking(which=FILTERS, how=_HOW)
def mlflow(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="[URI]", show_default=False, help="sqlite:///FILE.db, http://HOST:PORT. Default: MLFLOW_TRACKING_URI."
        ),
    ] = None,
    *,
    experiment: Annotated[str, typer.Option(metavar="NAME", help="Created if needed.")] = "pflbench",
    which: o.Given,
    how: o.Given,
) -> None:
    """Log to MLflow: parameters, tags and the metrics of every round. Repeating the command adds only new rounds."""
    if uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UserError("There is no URI.", "Name MLflow's: pflbench track mlflow sqlite:///mlflow.db")
    _track("mlflow", lambda module: module.MLflow(uri, experiment), which, **how)


@app.command()
@o.taking(which=FILTERS, how=_HOW)
def wandb(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="Created by Weights & Biases if needed.")],
    *,
    entity: Annotated[str | None, typer.Option(metavar="NAME", help="User or team. Default: your own.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Write files only, for `wandb sync` later.")] = False,
    folder: Annotated[Path, typer.Option("--dir", envvar="WANDB_DIR", help="Parent of the folder `wandb`.")] = Path("."),
    which: o.Given,
    how: o.Given,
) -> None:
    """Log to Weights & Biases: specification and metrics of every round. Repeating the command adds only new rounds."""
    offline = offline or os.environ.get("WANDB_MODE") == "offline"
    _track("wandb", lambda module: module.WandB(project, entity, folder, offline=offline), which, **how)


def _track(
    extra: str, made: Callable[[Any], Tracker], which: o.Given, *, follow: bool, every: float, patience: float, db: str
) -> None:
    from pflbench.track import deliver

    with opened(db, create=follow) as engine:  # --follow may be started before the first run
        if not follow:
            found_runs(engine, which)  # no folder, no project where there is nothing to show
        tracker = made(_module(extra))
        delivery = deliver.Delivery(engine, tracker)
        try:
            if follow:
                deliver.follow(delivery, lambda: found_runs(engine, which), every, patience)
            else:
                delivery(found_runs(engine, which))
        except KeyboardInterrupt:
            message("Interrupted. The same command continues.")
            raise
        finally:
            tracker.close()
            if delivery.rounds:
                message(f"New: {delivery.rounds:,} rounds of {len(delivery.runs):,} runs.")
        if not delivery.rounds:
            message("Nothing new.")


def _module(extra: str) -> Any:
    """The writer of a tracker. Raises UserError if its library is not installed."""
    try:
        return import_module(f"pflbench.track.{extra}")
    except ModuleNotFoundError as error:
        name = (error.name or extra).partition(".")[0]
        raise UserError(f"{name} is not installed.", f'pip install "pflbench[{extra}]"') from None
