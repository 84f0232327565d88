"""What accuracy costs, and how it moves with the number of clients and with beta."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Engine

from pflbench.report import heterogeneity as betas
from pflbench.report import pareto, sweep
from pflbench.report import scalability as clients
from pflbench.report.chosen import Filters, protocol
from pflbench.report.collect import Arranged
from pflbench.report.interactive import figure as f
from pflbench.report.interactive.figure import Interactive, Json
from pflbench.report.sweep import Measure, Sweep

DECADE = 10  # of the largest to the smallest cost: from here on a logarithmic axis tells more
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
    front: Json = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        # As long as nothing better is bought, more cost leaves the accuracy where it is.
        "line": {"shape": "hv", "color": f.GREY, "width": 1.5},
        "hoverinfo": "skip",
        "x": f.numbers(cost[k] for k in on_front),
        "y": f.numbers(accuracy[k] for k in on_front),
    }
    points = [_point(point, which, k in on_front) for k, point in enumerate(panel.points)]
    logarithmic = min(cost) > 0 and max(cost) >= DECADE * min(cost)
    x = f.axis(label, type="log") if logarithmic else f.axis(label, type="linear", rangemode="tozero")
    names = [*(point.row.label for point in panel.points), "Pareto front"]
    return f.make(
        "overhead",
        f"{panel.setting.title}: {_without_unit(label)}",
        f"{pareto.caption([panel], pareto.TOLERANCE)} {protocol([panel.setting])}",
        [front, *points],
        f.layout(x, f.axis("Test accuracy (%)"), legend=names),
        notes=notes,
        runs=[run for point in panel.points for run in point.runs],
    )


def _point(point: pareto.Point, which: int, on_front: bool) -> Json:
    label = f.text(point.row.label)
    seconds, megabytes = point.cost
    told = f"{point.accuracy:.2f} %<br>{seconds:,.1f} s, {megabytes:,.2f} MB<br>{f.of_runs(point.runs)}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "cliponaxis": False,  # what costs nothing stands on the edge
        "x": f.numbers([point.cost[which]]),
        "y": f.numbers([point.accuracy]),
        "marker": {"color": f.colour(point.row), "symbol": f.point_symbol(point.row), "size": SIZES[on_front]},
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


def _sweep(found: Arranged, of: Sweep, measure: Measure, *, name: str, x: str, caption: str) -> Interactive:
    lines = sweep.lines(found, of, measure)
    runs, common = sweep.of_all(found, [of])
    ticks = f.numbers(of.values)
    across = f.axis(x, type="log", tickmode="array", tickvals=ticks, ticktext=[f"{value:g}" for value in of.values])
    up = f.axis(measure.label, rangemode="tozero" if measure.from_zero else "normal")
    return f.make(
        name,
        f"{of.title}: {_without_unit(measure.label)}",
        f"{caption} {common}",
        [_sweep_line(line, of.values, measure) for line in lines],
        f.layout(across, up, legend=[line.row.label for line in lines]),
        notes=found.notes,
        runs=runs,
    )


def _sweep_line(line: sweep.Line, values: Sequence[float], measure: Measure) -> Json:
    label = f.text(line.row.label)
    places = ".2f" if measure is sweep.ACCURACY else ".3f"
    between = f"%{{customdata[0]:{places}}} to %{{customdata[1]:{places}}}"
    told = [[*f.numbers([low, high]), f.of_runs(runs)] for low, high, runs in zip(line.low, line.high, line.runs, strict=True)]
    return {
        "type": "scatter",
        "name": label,
        "x": f.numbers(line.x),
        "y": f.numbers(line.mean),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": f.numbers(high - mean for high, mean in zip(line.high, line.mean, strict=True)),
            "arrayminus": f.numbers(mean - low for low, mean in zip(line.low, line.mean, strict=True)),
            "thickness": 1.2,
            "width": 0,
        },
        "customdata": told,
        "hovertemplate": (
            f"<b>{label}</b><br>%{{xaxis.title.text}}: %{{x}}<br>%{{yaxis.title.text}}: %{{y:{places}}} ({between})"
            "<br>%{customdata[2]}<extra></extra>"
        ),
        **f.line(line.row),
    }


def _without_unit(label: str) -> str:
    """'Training time (s)' -> 'training time'."""
    return label.partition(" (")[0].lower()
