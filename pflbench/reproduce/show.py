"""The table and the figure of a goal, made of its own runs alone: what else is in the database is not seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Engine

from pflbench import data
from pflbench.errors import NothingYet, UserError
from pflbench.report import labels, style
from pflbench.report.declared import PLOTS, TABLES
from pflbench.report.figures import distribution
from pflbench.report.figures.trajectory import numbers as trajectory
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import Grid
from pflbench.reproduce.goal import Goal
from pflbench.run import surface
from pflbench.run.federation_data import load_federation_data
from pflbench.run.plan import RunOptions, partition_options, plan
from pflbench.spec import RunSpec
from pflbench.store import arrays
from pflbench.store.partitions import PartitionRecord
from pflbench.store.runs import distinct

AT_ONCE = 16  # models of a surface in memory


def grid(goal: Goal, engine: Engine, runs: Sequence[int]) -> Grid:
    """The table of these runs. Raises UserError where they are too few for it."""
    build = _table(goal)
    options = _accepted(build, {"declared": goal.table, "paper": _paper(goal)})
    made: Grid = build(engine, Filters(only=frozenset(runs)), **options).grid()
    left_out = [f"Left out: {', '.join(goal.left_out)}."] if goal.left_out else []
    return replace(made, notes=(note(goal), *left_out, *made.notes))


def drawing(goal: Goal, engine: Engine, runs: Sequence[int]) -> style.Drawing:
    """The figure of these runs, with all of their datasets. Raises UserError where there is nothing to draw."""
    own = Filters(only=frozenset(runs))
    # What is named is drawn as long as it fits on a page.
    filters = replace(own, datasets=distinct(engine, own.among(engine), "dataset"))
    made: style.Drawing = PLOTS[goal.name].build(engine, filters, **goal.figure_options)
    return noted(goal, made)


def noted(goal: Goal, drawn: style.Drawing) -> style.Drawing:
    """With a note of the scale."""
    return replace(drawn, notes=(note(goal), *drawn.notes))


def held(specs: Iterable[RunSpec], data_dir: Path, progress: data.Progress | None) -> list[PartitionRecord]:
    """Who holds what, from data and partition alone, each once. What cannot be read is left out; UserError where nothing can."""
    found: dict[str, PartitionRecord] = {}
    refused: list[UserError] = []
    for spec in {(spec.data, spec.partition): spec for spec in specs}.values():
        try:
            made = load_federation_data(spec, data_dir, progress).record
        except UserError as error:
            refused.append(error)
            continue
        found[made.hash] = made
    if not found:
        raise refused[0]
    return list(found.values())


def data_drawing(goal: Goal, data_dir: Path, progress: data.Progress | None) -> style.Drawing:
    """A figure that needs no run. Raises UserError where none of its data are here."""
    specs = [one.spec for one in goal.planned(data_dir)]
    made = held(specs, data_dir, progress)
    there = {one.dataset for one in made}
    absent = dict.fromkeys(labels.label_title(spec.data.label) for spec in specs if spec.data.label not in there)
    drawn = distribution.drawing(made)
    return replace(drawn, notes=(*drawn.notes, *(f"Left out, as its data are not here: {name}." for name in absent)))


def planned_partitions(
    datasets: Sequence[str], partitions: Sequence[str], data_dir: Path, progress: data.Progress | None, missing: UserError
) -> style.Drawing:
    """The partitions that runs would have, by dataset and label. missing: why the database cannot show them."""
    try:
        schemes = [partition_options(text) for text in partitions] or [{}]
    except UserError as no_label:
        raise no_label if isinstance(missing, NothingYet) else missing from None
    specs = [spec for scheme in schemes for spec in plan(RunOptions(("local",), tuple(datasets), data_dir, **scheme))]
    drawn = distribution.drawing(held(specs, data_dir, progress))
    if datasets:
        return drawn
    more = "The FedALA paper's: pflbench reproduce figure6, to figure9. Others: -d NAME -p 'Dir(0.1)', also Pathological(2), IID."
    return replace(drawn, notes=(*drawn.notes, more))


def compute_surface(goal: Goal, engine: Engine, runs: Sequence[int], data_dir: Path, device: str) -> None:
    """The loss around a trajectory, which is no run's: computed and stored, unless it is there. Nothing for other figures."""
    if goal.figure is None or goal.figure.window is None:
        return
    paths = trajectory.paths(engine, Filters(only=frozenset(runs)), **goal.figure_options)
    if trajectory.stored_surface(engine, paths, trajectory.plane(paths)) is None:
        keep_surface(engine, paths, data_dir, device)


def keep_surface(engine: Engine, paths: trajectory.Paths, data_dir: Path, device: str = "auto") -> None:
    """Stores the client's mean training loss on a grid in the plane of these paths, with the first of their runs."""
    plane, run = trajectory.plane(paths), paths.runs[0]
    at = plane.grid()
    points = at.reshape(-1, 2)
    models = (plane.models(points[k : k + AT_ONCE]) for k in range(0, len(points), AT_ONCE))
    found = surface.losses(engine, run, paths.client, models, data_dir, device).reshape(*at.shape[:2], 1)
    arrays.keep(engine, run, trajectory.surface_name(paths.client), paths.rounds[-1], np.concatenate([at, found], axis=2))


def _table(goal: Goal) -> Callable[..., Any]:
    """The table's function. `table accuracy` shows any runs; the paper's Table 2 has the paper's places, run or not."""
    return TABLES[TABLES[goal.name].printed or goal.name].load()


def note(goal: Goal) -> str:
    """At which scale it was made."""
    return f"Scale {goal.scale.name}: {goal.scale.sentence}."


def _paper(goal: Goal) -> str:
    return "never" if goal.scale.embedded else "always"


def _accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
