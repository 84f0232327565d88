"""What accuracy costs, and how it moves with one number of the setting: the clients, beta, and what `plot elastic` varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Engine

from pflbench.report import elastic as poster
from pflbench.report import heterogeneity as betas
from pflbench.report import pareto, scales, sweep, web
from pflbench.report import scalability as clients
from pflbench.report.chosen import Filters, protocol
from pflbench.report.collect import Arranged
from pflbench.report.scales import CostScale
from pflbench.report.sweep import Measure, Sweep
from pflbench.report.web import Interactive, Json

SIZES = (9, 14)  # pixels: of a point, of one on the Pareto front


def overheads(engine: Engine, filters: Filters) -> list[Interactive]:
    """Two figures for each setting: over the training time, and over the megabytes sent. UserError when there are no runs."""
    found = filters.collect(engine)
    panels = [pareto.panel(engine, found, j) for j in range(len(found.settings))]
    return [_overhead(panel, which, found.notes) for panel in panels if panel.points for which in range(len(pareto.COSTS))]


def _overhead(panel: pareto.Panel, which: int, notes: tuple[str, ...]) -> Interactive:
    label = pareto.COSTS[which]
    cost, accuracy = [point.cost[which] for point in panel.points], [point.accuracy for point in panel.points]
    on_front = pareto.front(cost, accuracy)
    scale = scales.of_costs(cost)
    at = cost if scale is None else [scale.place(value) for value in cost]
    front: Json = {
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
        f"{panel.setting.title}: {_without_unit(label)}",
        f"{pareto.caption([panel], pareto.TOLERANCE)} {protocol([panel.setting])}",
        [front, *points],
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


def _point(point: pareto.Point, at: float, on_front: bool) -> Json:
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


def scalability(engine: Engine, filters: Filters) -> list[Interactive]:
    """Two figures for each group of settings that differ in the number of clients alone; UserError where there is none."""
    found = filters.collect(engine)
    made = sweep.sweeps(found, clients.KEY, clients.COMMAND)
    measures = clients.measures(engine, sweep.of_all(found, made)[0])
    draw = partial(_sweep, found, name="scalability", x=clients.X)
    return [draw(one, measure, caption=clients.caption(found, [one])) for one in made for measure in measures]


def heterogeneity(engine: Engine, filters: Filters) -> list[Interactive]:
    """A figure for each group of settings that differ in beta alone; UserError where there is none."""
    found = filters.collect(engine)
    made = sweep.sweeps(found, betas.KEY, betas.COMMAND)
    draw = partial(_sweep, found, name="heterogeneity", x=betas.X)
    return [draw(one, sweep.ACCURACY, caption=betas.caption(found, [one])) for one in made]


def elastic(engine: Engine, filters: Filters) -> list[Interactive]:
    """A figure for each group of settings that differ in one of the three alone; UserError where there is none."""
    found = poster.collected(engine, filters)
    measure = poster.measure(engine, found)
    return [
        _sweep(
            found,
            panel.sweep,
            measure,
            name="elastic",
            x=panel.varied.label,
            caption=poster.caption(found, [panel], panel.sweep.columns[0]),
            over=f" by {panel.varied.label.lower()}",
        )
        for panel in poster.panels(found)
    ]


def _sweep(found: Arranged, of: Sweep, measure: Measure, *, name: str, x: str, caption: str, over: str = "") -> Interactive:
    """over: for the title, where one setting may have several figures."""
    lines = sweep.lines(found, of, measure)
    runs, common = sweep.of_all(found, [of])
    ticks = web.numbers(of.values)
    across = web.axis(x, type="log", tickmode="array", tickvals=ticks, ticktext=[f"{value:g}" for value in of.values])
    up = web.axis(measure.label, rangemode="tozero" if measure.from_zero else "normal")
    return web.make(
        name,
        f"{of.title}: {_without_unit(measure.label)}{over}",
        f"{caption} {common}",
        [_sweep_line(line, of.values, measure) for line in lines],
        web.layout(across, up, legend=True),
        notes=found.notes,
        runs=runs,
    )


def _sweep_line(line: sweep.Line, values: Sequence[float], measure: Measure) -> Json:
    label = web.text(line.row.label)
    places = ".2f" if measure.label.endswith("(%)") else ".3f"
    between = f"%{{customdata[0]:{places}}} to %{{customdata[1]:{places}}}"
    told = [
        [*web.numbers([low, high]), web.of_runs(runs)] for low, high, runs in zip(line.low, line.high, line.runs, strict=True)
    ]
    return {
        "type": "scatter",
        "name": label,
        "legendgroup": line.row.label,
        "x": web.numbers(line.x),
        "y": web.numbers(line.mean),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": web.numbers(high - mean for high, mean in zip(line.high, line.mean, strict=True)),
            "arrayminus": web.numbers(mean - low for low, mean in zip(line.low, line.mean, strict=True)),
            "thickness": 1.2,
            "width": 0,
        },
        "customdata": told,
        "hovertemplate": (
            f"<b>{label}</b><br>%{{xaxis.title.text}}: %{{x}}<br>%{{yaxis.title.text}}: %{{y:{places}}} ({between})"
            "<br>%{customdata[2]}<extra></extra>"
        ),
        **web.line(line.row),
    }


def _without_unit(label: str) -> str:
    """'Training time (s)' -> 'training time'."""
    return label.partition(" (")[0].lower()
