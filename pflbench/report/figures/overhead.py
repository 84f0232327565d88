"""What accuracy costs: training time and bytes until convergence, with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import labels, scales, style, web
from pflbench.report.arrangement import Arranged, Row, SharedSetting, busiest, protocol, titles
from pflbench.report.layout import Sheet, lettered
from pflbench.report.scales import CostScale
from pflbench.report.selection import Filters
from pflbench.report.web import Interactive, Json
from pflbench.store.rounds import costs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOLERANCE = 0.5  # points, as in `table overhead`
COSTS = ("Training time (s)", "Sent per client (MB)")
MOST = 3  # settings side by side on paper
SIZES = (9, 14)  # pixels: of a point, of one on the Pareto front


@dataclass(frozen=True)
class Point:
    """Means over a method's runs: accuracy in percent; cost: seconds, and megabytes of one client, until convergence."""

    row: Row
    accuracy: float
    cost: tuple[float, float]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class OverheadPanel:
    setting: SharedSetting
    points: tuple[Point, ...]


def plot(engine: Engine, filters: Filters = Filters(), *, tolerance: float = TOLERANCE) -> style.Drawing:
    """The setting with the most runs, or up to three chosen ones: accuracy over time, and below over bytes.

    tolerance: a run has converged at its first round within so many points of its best accuracy. Raises UserError for one below 0
    and where there are no runs.
    """
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise UserError(f"--tolerance {tolerance:g} is not possible.", "It is in points of accuracy, 0 or more.")
    found = filters.select(engine)
    chosen = busiest(found, MOST if filters.datasets or filters.partitions else 1)
    drawn = [made for j in chosen if (made := panel(engine, found, j, tolerance)).points]
    if not drawn:
        raise UserError("None of these runs has a trained and evaluated round.", "`pflbench runs list` shows what there is.")
    notes = list(found.notes)
    if len(found.settings) > len(drawn):
        notes.append(f"Drawn: {len(drawn)} of {len(found.settings)} settings. Choose with --dataset and --partition.")
    runs = tuple(sorted(run for panel in drawn for point in panel.points for run in point.runs))
    shown = [panel.setting for panel in drawn]
    with style.context():
        return style.Drawing(_draw(drawn, found.rows), caption(drawn, tolerance), tuple(notes), runs, protocol(shown))


def front(cost: Sequence[float], accuracy: Sequence[float]) -> list[int]:
    """The points to which no other is better in one and at least as good in both, by rising cost."""
    best, on_front = -math.inf, []
    for k in sorted(range(len(cost)), key=lambda k: (cost[k], -accuracy[k])):
        if accuracy[k] > best:
            best = accuracy[k]
            on_front.append(k)
    return on_front


def panel(engine: Engine, found: Arranged, column: int, tolerance: float = TOLERANCE) -> OverheadPanel:
    """The points of the setting with this number; runs without a trained and evaluated round are left out."""
    cells = {i: cell for (i, j), cell in sorted(found.cells.items()) if j == column}
    spent = costs(engine, [run.id for cell in cells.values() for run in cell], tolerance / 100)
    points = []
    for i, cell in cells.items():
        if of := [spent[run.id] for run in cell if run.id in spent]:
            seconds = float(np.mean([cost.seconds_total for cost in of]))
            megabytes = float(np.mean([cost.bytes * cost.converged / 1e6 for cost in of]))
            accuracy = 100 * float(np.mean([cost.best for cost in of]))
            points.append(Point(found.rows[i], accuracy, (seconds, megabytes), tuple(run.id for run in cell if run.id in spent)))
    return OverheadPanel(found.settings[column], tuple(points))


def _draw(drawn: Sequence[OverheadPanel], rows: Sequence[Row]) -> Figure:
    shown = [row for row in rows if any(point.row == row for panel in drawn for point in panel.points)]
    sheet = Sheet(2 * len(drawn), len(drawn), 1.5, measures=2)
    for k, ax in enumerate(sheet.axes):
        which, column = divmod(k, len(drawn))
        _draw_panel(ax, drawn[column], which)
        ax.set_xlabel(COSTS[which])
        ax.set_ylabel("Test accuracy (%)" if sheet.left(k) else "")
    sheet.name(titles([panel.setting for panel in drawn]))
    sheet.key([*(row.look.point for row in shown), style.FRONT], [*(row.label for row in shown), "Pareto front"])
    return sheet.finish()


def _draw_panel(ax: Axes, panel: OverheadPanel, which: int) -> None:
    cost = [point.cost[which] for point in panel.points]
    accuracy = [point.accuracy for point in panel.points]
    on_front = front(cost, accuracy)
    # As long as nothing better is bought, more cost leaves the accuracy where it is.
    ax.plot([cost[k] for k in on_front], [accuracy[k] for k in on_front], drawstyle="steps-post", zorder=1, **style.FRONT)
    for k, point in enumerate(panel.points):
        edge = {"markeredgecolor": "black", "markersize": 6.5} if k in on_front else {"markersize": 5}
        ax.plot([cost[k]], [accuracy[k]], label=point.row.label, **point.row.look.point, **edge)
    style.costs(ax, cost)
    ax.margins(y=0.12)


def caption(drawn: Sequence[OverheadPanel], tolerance: float) -> str:
    counts = {len(point.runs) for panel in drawn for point in panel.points}
    return (
        f"Best test accuracy over the training time and over the megabytes that one client sends and receives until convergence, "
        f"the first round within {tolerance:g} points of the best: {lettered([panel.setting.title for panel in drawn])}. "
        f"Means over {labels.between(counts, 'run')} per method. Grey line and large markers: the Pareto front. "
        "Evaluation is not counted as time."
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """Two figures for each setting: over the training time, and over the megabytes sent. UserError when there are no runs."""
    found = filters.select(engine)
    panels = [panel(engine, found, j) for j in busiest(found, most)]
    return [_page(panel, which, found.notes) for panel in panels if panel.points for which in range(len(COSTS))]


def _page(panel: OverheadPanel, which: int, notes: tuple[str, ...]) -> Interactive:
    label = COSTS[which]
    cost, accuracy = [point.cost[which] for point in panel.points], [point.accuracy for point in panel.points]
    on_front = front(cost, accuracy)
    scale = scales.of_costs(cost)
    at = cost if scale is None else [scale.place(value) for value in cost]
    line: Json = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        # As long as nothing better is bought, more cost leaves the accuracy where it is.
        "line": {"shape": "hv", "color": web.GREY, "width": 1.5},
        "hoverinfo": "skip",
        "x": web.numbers(at[k] for k in on_front),
        "y": web.numbers(accuracy[k] for k in on_front),
    }
    points = [_point(point, at[k], k in on_front) for k, point in enumerate(panel.points)]
    return web.make(
        "overhead",
        f"{panel.setting.title}: {web.without_unit(label)}",
        f"{caption([panel], TOLERANCE)} {protocol([panel.setting])}",
        [line, *points],
        web.layout(_cost_axis(label, scale), web.axis("Test accuracy (%)"), legend=True),
        notes=notes,
        runs=[run for point in panel.points for run in point.runs],
    )


def _cost_axis(label: str, scale: CostScale | None) -> Json:
    if scale is None:
        return web.axis(label, rangemode="tozero")
    begin = scale.low if scale.nothing is None else scale.nothing
    # Plotly's own would be digits without their power of ten, and no 0.
    ticks = dict(zip(scale.ticks, map("{:g}".format, scale.ticks), strict=True))
    ticks |= {} if scale.nothing is None else {scale.nothing: "0"}
    span = [math.log10(begin / 1.5), math.log10(scale.end)]
    return web.axis(label, type="log", range=span, tickvals=web.numbers(ticks), ticktext=list(ticks.values()))


def _point(point: Point, at: float, on_front: bool) -> Json:
    """at: on the axis of costs."""
    label = web.text(point.row.label)
    seconds, megabytes = point.cost
    told = f"{point.accuracy:.2f} %<br>{seconds:,.1f} s, {megabytes:,.2f} MB<br>{web.of_runs(point.runs)}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "legendgroup": point.row.label,  # entries in groups stand line by line, others in columns as wide as the longest
        "x": web.numbers([at]),
        "y": web.numbers([point.accuracy]),
        "marker": {"color": web.colour(point.row), "symbol": web.point_symbol(point.row), "size": SIZES[on_front]},
        "hovertemplate": f"<b>{label}</b><br>{told}<extra></extra>",
    }
