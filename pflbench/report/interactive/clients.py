"""How the clients fare under each method, and who holds what."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.report import distribution, labels
from pflbench.report import fairness as fair
from pflbench.report.chosen import Filters, protocol
from pflbench.report.fairness import Panel
from pflbench.report.interactive import figure as f
from pflbench.report.interactive.figure import Interactive, Json
from pflbench.report.looks import COLOURS
from pflbench.store.read import Floats, PartitionInfo

METHOD, LABEL_LINE, AROUND = 38, 18, 110  # pixels in height: for a method, for a line of its name, beside them
KINDS = ("a client", "quartiles", "median", "worst tenth, mean")
# In pixels; many classes have little room.
WIDTH, HEIGHTS, AXIS, LARGEST = 640, (400, 760), 70, 60
CLASSES = 30


def fairness(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of all settings whose runs have results by client. Raises UserError when there are no runs."""
    found = filters.collect(engine)
    panels, left_out = f.possible(range(len(found.settings)), partial(fair.panel, engine, found))
    return [_fairness(panel, (*found.notes, *left_out)) for panel in panels]


def _fairness(panel: Panel, notes: tuple[str, ...]) -> Interactive:
    names = [f.text(textwrap.fill(group.row.label, fair.LETTERS)).replace("\n", "<br>") for group in panel.groups]
    drawn = (_each_client(panel), _quartiles(panel), _median(panel), _worst(panel))
    traces = [{**trace, "legendgroup": kind, "showlegend": False} for kind, trace in zip(KINDS, drawn, strict=True)]
    rows, lines = len(panel.groups), 1 + max(name.count("<br>") for name in names)
    y = f.axis("", range=[rows - 0.4, -0.6], tickmode="array", tickvals=list(range(rows)), ticktext=names, showgrid=False)
    return f.make(
        "fairness",
        panel.setting.title,
        f"{fair.caption([panel])} {protocol([panel.setting])}",
        [*traces, *map(_key, KINDS, drawn)],
        f.layout(f.axis("Test accuracy of a client (%)"), y, legend=True, height=AROUND + max(METHOD, LABEL_LINE * lines) * rows),
        notes=notes,
        runs=[run for group in panel.groups for run in group.runs],
    )


def _each_client(panel: Panel) -> Json:
    return {
        **_marks(panel, [group.accuracies for group in panel.groups], "line-ns"),
        "customdata": [
            [f.text(group.row.label), client, run]
            for group in panel.groups
            for client, run in zip(group.clients.tolist(), group.of.tolist(), strict=True)
        ],
        "hovertemplate": "<b>%{customdata[0]}</b>, client %{customdata[1]}: %{x:.2f} %<br>run %{customdata[2]}<extra></extra>",
    }


def _median(panel: Panel) -> Json:
    return _summary(panel, [group.median for group in panel.groups], "median", "")


def _worst(panel: Panel) -> Json:
    return _summary(panel, [group.worst for group in panel.groups], "mean of the worst tenth", "-open")


def _summary(panel: Panel, at: Sequence[float], what: str, fill: str) -> Json:
    return {
        **_marks(panel, [[value] for value in at], [f.symbol(group.row) + fill for group in panel.groups]),
        "customdata": [[f.text(group.row.label), f.of_runs(group.runs)] for group in panel.groups],
        "hovertemplate": f"<b>%{{customdata[0]}}</b>, {what}: %{{x:.2f}} %<br>%{{customdata[1]}}<extra></extra>",
    }


def _marks(panel: Panel, of: Sequence[Sequence[float] | Floats], symbols: str | list[str]) -> Json:
    """Points of each method's line, in its colour."""
    colours = [f.colour(group.row) for group, values in zip(panel.groups, of, strict=True) for _ in values]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": f.numbers(value for values in of for value in values),
        "y": [k for k, values in enumerate(of) for _ in values],
        "marker": {"color": colours, "symbol": symbols, "size": 10, "line": {"color": colours, "width": 1.5}},
    }


def _quartiles(panel: Panel) -> Json:
    low, high = np.array([np.percentile(group.accuracies, (25, 75)) for group in panel.groups]).T
    return {
        "type": "bar",
        "orientation": "h",
        "base": f.numbers(low),
        "x": f.numbers(high - low),
        "y": list(range(len(panel.groups))),
        "width": 0.32,
        "marker": {"color": [f.faint(f.colour(group.row), 0.35) for group in panel.groups], "line": {"width": 0}},
        "customdata": [
            [f.text(group.row.label), *f.numbers(bounds)] for group, *bounds in zip(panel.groups, low, high, strict=True)
        ],
        "hovertemplate": (
            "<b>%{customdata[0]}</b>, half of the clients: %{customdata[1]:.2f} to %{customdata[2]:.2f} %<extra></extra>"
        ),
    }


def _key(kind: str, drawn: Json) -> Json:
    """An entry of the legend without points: those that are drawn have the colours of the methods."""
    symbol = drawn["marker"].get("symbol", "square")
    mark = symbol if isinstance(symbol, str) else "circle-open" if "open" in symbol[0] else "circle"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "legendgroup": kind,
        "x": [None],
        "y": [None],
        "marker": {"color": f.GREY, "symbol": mark, "size": 10, "line": {"color": f.GREY, "width": 1.5}},
    }


def distributions(engine: Engine, filters: Filters) -> list[Interactive]:
    """Of all stored partitions; the filters for methods and status have no say. Raises UserError if there are none."""
    return [_distribution(partition) for partition in distribution.choose(engine, filters.datasets, filters.partitions)]


def _distribution(partition: PartitionInfo) -> Interactive:
    title = f"{labels.label_title(partition.dataset)}, {partition.label}, {len(partition.train)} clients"
    clients, classes = partition.train.shape
    across, up = (f.whole(name, places, range=[-0.8, places - 0.2]) for name, places in (("Client", clients), ("Class", classes)))
    return f.make(
        "distribution",
        f"{title} ({partition.hash[:8]})",
        distribution.caption([partition]),
        [_circles(partition)],
        f.layout(across, up, height=HEIGHTS[classes > CLASSES]),
    )


def _circles(partition: PartitionInfo) -> Json:
    counts = partition.train + partition.test
    client, label = counts.nonzero()
    held = counts[client, label]
    clients, classes = counts.shape
    largest = min(LARGEST, distribution.diameter(WIDTH, HEIGHTS[classes > CLASSES] - AXIS, (clients, classes)))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": client.tolist(),
        "y": label.tolist(),
        "marker": {
            "color": COLOURS[0],
            "opacity": 0.75,
            "size": f.numbers(largest * np.sqrt(held / held.max())),
            "line": {"width": 0},
        },
        "customdata": [
            [f.text(partition.classes[k]), total, train, total - train]
            for k, total, train in zip(label.tolist(), held.tolist(), partition.train[client, label].tolist(), strict=True)
        ],
        "hovertemplate": (
            "client %{x}, class %{y} (%{customdata[0]})<br>%{customdata[1]:,} samples: %{customdata[2]:,} to train on, "
            "%{customdata[3]:,} to test on<extra></extra>"
        ),
    }
