"""Whose models clients draw on, a figure for each method and setting."""

from __future__ import annotations

from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.report import attention
from pflbench.report.attention import Panel
from pflbench.report.chosen import Filters, Observed, one_per_line, protocol, with_arrays
from pflbench.report.interactive import figure as f
from pflbench.report.interactive.figure import Interactive, Json

HEIGHT = 520  # pixels
TICKS = 20


def figures(engine: Engine, filters: Filters) -> list[Interactive]:
    """After the last round that was kept; of several seeds the first. Raises UserError where no run kept a matrix."""
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, attention.ARRAYS, attention.COMMAND))
    panels, left_out = f.possible(seen, partial(_panel, engine))
    return [_figure(panel, (*found.notes, *left_out)) for panel in panels]


def _panel(engine: Engine, of: Observed) -> Panel:
    return attention.panel(engine, of, of.rounds[-1])


def _figure(panel: Panel, notes: tuple[str, ...]) -> Interactive:
    clients = panel.order.tolist()
    sorted_groups = panel.groups.of[panel.order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    ends = np.append(starts[1:], len(clients))
    every = max(1, len(clients) // TICKS)
    across = f.axis(
        "Client whose model is drawn on",
        tickmode="array",
        tickvals=list(range(0, len(clients), every)),
        ticktext=[str(client) for client in clients[::every]],
        showgrid=False,
        constrain="domain",
    )
    up = f.axis(
        "Group: its classes" if panel.groups.true else "Most frequent class",
        tickmode="array",
        tickvals=((starts + ends - 1) / 2).tolist(),
        ticktext=[f.text(panel.groups.names[sorted_groups[at]]) for at in starts],
        showgrid=False,
        autorange="reversed",
        scaleanchor="x",
        constrain="domain",
    )
    shapes = [line for at in (starts[1:] - 0.5).tolist() for line in _separators(at)]
    return f.make(
        "attention",
        panel.seen.title,
        f"{attention.caption([panel])} {protocol([panel.seen.setting])}",
        [_diagonal(len(clients)), _matrix(panel)],
        f.layout(across, up, height=HEIGHT, shapes=shapes),
        notes=(f"After round {panel.round}: {attention.measured(panel)}.", *notes),
        runs=[panel.seen.run.id],
    )


def _matrix(panel: Panel) -> Json:
    shown = 100 * panel.shares[np.ix_(panel.order, panel.order)]
    most = float(np.nanmax(np.abs(shown), initial=0)) or 1.0
    negative = bool((shown < 0).any())
    clients = panel.order.tolist()
    return {
        "type": "heatmap",
        "z": [f.numbers(row) for row in shown],
        "colorscale": "RdBu" if negative else "Viridis",
        "zmin": -most if negative else 0,
        "zmax": most,
        "hoverongaps": False,
        "colorbar": {
            "title": {"text": "Share of a client's weights on others (%)", "side": "top"},
            "orientation": "h",
            "y": 1.01,
            "yanchor": "bottom",
            "thickness": 12,
        },
        "customdata": [[[i, j] for j in clients] for i in clients],
        "hovertemplate": (
            "client %{customdata[0]} on client %{customdata[1]}: %{z:.2f} %"
            f"<br>round {panel.round}, run {panel.seen.run.id}<extra></extra>"
        ),
    }


def _diagonal(clients: int) -> Json:
    """Grey: a client's weight on its own model is no share of those on others."""
    return {
        "type": "heatmap",
        "z": [[1 if i == j else None for j in range(clients)] for i in range(clients)],
        "colorscale": [[0, f.GREY], [1, f.GREY]],
        "showscale": False,
        "hoverinfo": "skip",
    }


def _separators(at: float) -> list[Json]:
    look = {"type": "line", "line": {"color": "#ffffff", "width": 1}}
    return [
        {**look, "xref": "x", "x0": at, "x1": at, "yref": "y domain", "y0": 0, "y1": 1},
        {**look, "yref": "y", "y0": at, "y1": at, "xref": "x domain", "x0": 0, "x1": 1},
    ]
