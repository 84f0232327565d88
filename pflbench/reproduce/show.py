"""The table and the figure of a goal, from its own runs only; other runs of the database are ignored."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import Engine

from pflbench import data
from pflbench.errors import NothingYet, UserError
from pflbench.report import labels, style
from pflbench.report.declared import PLOTS, TABLES
from pflbench.report.figures import distribution, trajectory
from pflbench.report.selection import Filters
from pflbench.report.tables.grid import Grid
from pflbench.reproduce.goal import Goal
from pflbench.run import surface
from pflbench.run.federation_data import load_federation_data
from pflbench.run.options import RunOptions
from pflbench.run.plan import partition_options, plan
from pflbench.spec import RunSpec
from pflbench.store import arrays
from pflbench.store.partitions import PartitionRecord
from pflbench.store.runs import distinct

AT_ONCE = 16  # models of a surface in memory


def grid(goal: Goal, engine: Engine, runs: frozenset[int]) -> Grid:
    """The table of these runs. Raises UserError where they are too few for it."""
    # `table accuracy` shows any runs; the paper's Table 2 shows all settings of the paper, also those without runs.
    build = TABLES[TABLES[goal.name].printed or goal.name].load()
    options = {"declared": goal.table, "paper": "never" if goal.scale.embedded else "always"}
    accepted = {name: options[name] for name in options.keys() & inspect.signature(build).parameters.keys()}
    made: Grid = build(engine, Filters(only=runs), **accepted).grid()
    return replace(made, notes=(goal.note, *made.notes))


def drawing(
    goal: Goal, engine: Engine, runs: frozenset[int], data_dir: Path, device: str, progress: data.Progress | None
) -> style.Drawing:
    """The figure of these runs, with all of their datasets; or of data alone. Raises UserError where there is nothing to draw."""
    if goal.untrained:
        made = data_drawing(goal, data_dir, progress)
    else:
        _compute_surface(goal, engine, runs, data_dir, device)
        own = Filters(only=runs)
        # Datasets that are named are all drawn, as long as they fit on a page.
        filters = replace(own, datasets=distinct(engine, own.among(engine), "dataset"))
        made = PLOTS[goal.name].load()(engine, filters, **goal.figure_options)
    return replace(made, notes=(goal.note, *made.notes))


def held(specs: Iterable[RunSpec], data_dir: Path, progress: data.Progress | None) -> list[PartitionRecord]:
    """The partitions of these runs, without repetition. Unreadable data are left out; UserError if none can be read."""
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
    """A figure that needs no run. Raises UserError if none of its data are here."""
    specs = [one.spec for one in goal.planned(data_dir)]
    made = held(specs, data_dir, progress)
    there = {one.dataset for one in made}
    absent = dict.fromkeys(labels.label_title(spec.data.label) for spec in specs if spec.data.label not in there)
    drawn = distribution.drawing(made)
    return replace(drawn, notes=(*drawn.notes, *(f"Left out, as its data are not here: {name}." for name in absent)))


def planned_partitions(
    datasets: Sequence[str], partitions: Sequence[str], data_dir: Path, progress: data.Progress | None, missing: UserError
) -> style.Drawing:
    """A figure of the partitions that runs on these datasets would have. missing: why the database cannot show them."""
    try:
        schemes = [partition_options(text) for text in partitions] or [{}]
    except UserError as no_label:
        raise no_label if isinstance(missing, NothingYet) else missing from None
    specs = [spec for scheme in schemes for spec in plan(RunOptions(("local",), tuple(datasets), data_dir, **scheme))]
    return distribution.drawing(held(specs, data_dir, progress))


def _compute_surface(goal: Goal, engine: Engine, runs: frozenset[int], data_dir: Path, device: str) -> None:
    """As `keep_surface`, for a trajectory figure. Other figures have none."""
    if goal.figure is not None and goal.figure.window is not None:
        keep_surface(engine, trajectory.paths(engine, Filters(only=runs), **goal.figure_options), data_dir, device)


def keep_surface(engine: Engine, paths: trajectory.Paths, data_dir: Path, device: str = "auto") -> None:
    """Computes the client's mean training loss on a grid in the plane of these paths and stores it with the first run, once."""
    plane, run = trajectory.plane(paths), paths.runs[0]
    if trajectory.stored_surface(engine, paths, plane) is not None:
        return
    at = plane.grid()
    points = at.reshape(-1, 2)
    models = (plane.models(points[k : k + AT_ONCE]) for k in range(0, len(points), AT_ONCE))
    found = surface.losses(engine, run, paths.client, models, data_dir, device).reshape(*at.shape[:2], 1)
    arrays.keep(engine, run, trajectory.surface_name(paths.client), paths.rounds[-1], np.concatenate([at, found], axis=2))
