"""Accuracy over its cost, training time and bytes until convergence, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels, render, style, web
from pflbench.report.arrangement import Arranged, Row, SharedSetting, busiest
from pflbench.report.looks import Look
from pflbench.report.selection import Filters
from pflbench.report.tables.overhead import TOLERANCE
from pflbench.report.traces import GREY, Axis, Panel, Trace, cost_axis, lettered, run_numbers
from pflbench.report.web import Interactive
from pflbench.store.rounds import costs

COSTS = ("Training time (s)", "Sent per client (MB)")
MOST = 3  # settings side by side on paper
FRONT = Look(GREY, "o", 0, 0)
SIZES = (4.5, 7)  # of a point, of one on the Pareto front


@dataclass(frozen=True)
class Point:
    """Means over a method's runs: accuracy in percent; cost: seconds, and megabytes per client, until convergence."""

    row: Row
    accuracy: float
    cost: tuple[float, float]
    runs: tuple[int, ...]


def plot(engine: Engine, filters: Filters = Filters(), *, tolerance: float = TOLERANCE) -> style.Drawing:
    """The setting with the most runs, or up to three chosen ones: accuracy over time, and below over bytes.

    tolerance: a run has converged at its first round within so many points of its best accuracy. Raises UserError where there are
    no runs.
    """
    found = filters.select(engine)
    found, chosen, colours = render.chosen_settings(found, filters, MOST, unasked=1)
    drawn = [(found.settings[j], made) for j in chosen if (made := points(engine, found, j, tolerance))]
    if not drawn:
        raise UserError("None of these runs has a trained and evaluated round.", "`pflbench runs list` shows what there is.")
    panels = [panel(*one, which) for which in range(len(COSTS)) for one in drawn]
    said = caption(drawn, tolerance) + colours
    return render.of_settings(found, panels, said, measures=len(COSTS), columns=len(drawn), height=1.5)


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Two figures for each setting: over training time and over megabytes. Raises UserError without runs."""
    found = filters.select(engine)
    drawn = [(found.settings[j], made) for j in busiest(found, most) if (made := points(engine, found, j))]
    return [
        web.figure("overhead", panel(*one, which), caption([one], TOLERANCE), found.notes)
        for one in drawn
        for which in range(len(COSTS))
    ]


def caption(drawn: Sequence[tuple[SharedSetting, Sequence[Point]]], tolerance: float) -> str:
    counts = {len(point.runs) for _, made in drawn for point in made}
    return (
        "Best test accuracy over the training time and over the megabytes that a client sends and receives on average until "
        f"convergence, the first round within {tolerance:g} points of the best: "
        f"{lettered([setting.title for setting, _ in drawn])}. "
        f"Means over {labels.between(counts, 'run')} per method. Grey line and large markers: the Pareto front. "
        "Evaluation is not counted as time."
    )


def front(cost: Sequence[float], accuracy: Sequence[float]) -> list[int]:
    """The points that no other point dominates, by rising cost."""
    values = np.array(accuracy)
    order = np.lexsort((-values, np.array(cost)))
    best = np.maximum.accumulate(values[order])
    return [int(k) for k in order[np.diff(best, prepend=-np.inf) > 0]]


def points(engine: Engine, found: Arranged, column: int, tolerance: float = TOLERANCE) -> list[Point]:
    """Those of a setting, without runs that have no trained and evaluated round."""
    cells = found.column(column)
    spent = costs(engine, [run.id for _, cell in cells for run in cell], tolerance / 100)
    made = []
    for row, cell in cells:
        if of := {run.id: spent[run.id] for run in cell if run.id in spent}:
            clients = cell[0].clients - cell[0].spec["train"].get("new_clients", 0)
            seconds = float(np.mean([cost.seconds_total for cost in of.values()]))
            megabytes = float(np.mean([cost.bytes_total / clients / 1e6 for cost in of.values()]))
            accuracy = 100 * float(np.mean([cost.best for cost in of.values()]))
            made.append(Point(row, accuracy, (seconds, megabytes), tuple(of)))
    return made


def panel(setting: SharedSetting, points: Sequence[Point], which: int) -> Panel:
    """A panel of accuracy over one kind of cost."""
    cost, accuracy = [point.cost[which] for point in points], [point.accuracy for point in points]
    best = front(cost, accuracy)
    # As long as nothing better is bought, more cost leaves the accuracy where it is.
    line = Trace(
        [cost[k] for k in best], [accuracy[k] for k in best], FRONT, "Pareto front", draws="lines", steps=True, width=0.8
    )
    marks = [
        Trace(
            [cost[k]],
            [point.accuracy],
            point.row.look,
            point.row.label,
            draws="markers",
            size=SIZES[k in best],
            hover=f"{point.accuracy:.2f} %<br>{point.cost[0]:,.1f} s, {point.cost[1]:,.2f} MB<br>{run_numbers(point.runs)}",
        )
        for k, point in enumerate(points)
    ]
    return Panel(
        f"{setting.title}: {COSTS[which].partition(' (')[0].lower()}",
        cost_axis(COSTS[which], cost),
        Axis("Test accuracy (%)"),
        [line, *marks],
        tuple(run for point in points for run in point.runs),
        (setting,),
    )
