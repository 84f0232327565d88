"""Accuracy over rounds, a figure per setting."""

from __future__ import annotations

from sqlalchemy import Engine

from pflbench.report import curves, web
from pflbench.report.chosen import Filters, protocol
from pflbench.report.curves import Line, Panel
from pflbench.report.web import Interactive, Json
from pflbench.store.read import Floats

MARKERS = 8  # to a line


def figures(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of all settings. Raises UserError when there are no runs."""
    found = filters.collect(engine)
    drawn = curves.panels(engine, found, x="round", band="minmax", most=len(found.settings), seconds=True)
    return [_figure(panel, found.notes) for panel in drawn]


def _figure(panel: Panel, notes: tuple[str, ...]) -> Interactive:
    bands = [_band(line) for line in panel.lines if len(line.runs) > 1]
    last = int(max((line.x[-1] for line in panel.lines if len(line.x)), default=0))
    layout = web.layout(
        web.whole(curves.XS["round"], last, rangemode="tozero"),
        web.axis("Test accuracy (%)"),
        legend=True,
    )
    return web.make(
        "curves",
        panel.setting.title,
        f"{curves.caption([panel], 'round', 'minmax')} {protocol([panel.setting])}",
        [*bands, *map(_line, panel.lines)],
        layout,
        notes=notes,
        runs=[run for line in panel.lines for run in line.runs],
    )


def _line(line: Line) -> Json:
    look = web.line(line.row)
    look["marker"]["maxdisplayed"] = MARKERS
    values, said = _beside(line)
    label = web.text(line.row.label)
    return {
        "type": "scatter",
        "name": label,
        "legendgroup": line.row.label,
        "x": web.numbers(line.x),
        "y": web.numbers(line.mean),
        "customdata": [web.numbers(point) for point in zip(*values, strict=True)],
        "hovertemplate": f"<b>{label}</b><br>round %{{x}}: %{{y:.2f}} %{said}<br>{web.of_runs(line.runs)}<extra></extra>",
        **look,
    }


def _beside(line: Line) -> tuple[list[Floats], str]:
    """What the hover text says beside round and mean: the numbers, and the text with their places."""
    values: list[Floats] = []
    said = ""
    if len(line.runs) > 1:
        said += " (%{customdata[0]:.2f} to %{customdata[1]:.2f})"
        values += [line.low, line.high]
    if line.seconds is not None and line.seconds.any():
        said += f"<br>%{{customdata[{len(values)}]:,.1f}} s of training"
        values.append(line.seconds)
    return values, said


def _band(line: Line) -> Json:
    """Along the lowest values and back along the highest."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": web.text(line.row.label),
        "legendgroup": line.row.label,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": web.numbers([*line.x, *line.x[::-1]]),
        "y": web.numbers([*line.low, *line.high[::-1]]),
        "fill": "toself",
        "fillcolor": web.faint(web.colour(line.row)),
        "line": {"width": 0},
    }
