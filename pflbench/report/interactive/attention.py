"""Whose models clients draw on, a figure for each method and setting."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from sqlalchemy import Engine

from pflbench.report import attention, web
from pflbench.report.attention import Panel
from pflbench.report.chosen import Filters, Observed, one_per_line, protocol, with_arrays
from pflbench.report.web import Interactive, Json

HEIGHT = 520  # pixels
TICKS = 20
BELOW = "#dddddd"  # what is less than the scale has
SEEN = 0.5  # decades: from 0 to the least weight that is told from it, where weights have a sign


def figures(engine: Engine, filters: Filters) -> list[Interactive]:
    """After the last round that was kept; of several seeds the first. Raises UserError where no run kept a matrix."""
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, attention.ARRAYS, attention.COMMAND))
    panels, left_out = web.possible(seen, partial(_panel, engine))
    return [_figure(panel, (*found.notes, *left_out)) for panel in panels]


def _panel(engine: Engine, of: Observed) -> Panel:
    return attention.panel(engine, of, of.rounds[-1])


def _figure(panel: Panel, notes: tuple[str, ...]) -> Interactive:
    clients = panel.order.tolist()
    sorted_groups = panel.groups.of[panel.order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    ends = np.append(starts[1:], len(clients))
    every = max(1, len(clients) // TICKS)
    across = web.axis(
        "Client whose model is drawn on",
        tickmode="array",
        tickvals=list(range(0, len(clients), every)),
        ticktext=[str(client) for client in clients[::every]],
        showgrid=False,
        constrain="domain",
    )
    up = web.axis(
        "Group: its classes" if panel.groups.true else "Most frequent class",
        tickmode="array",
        tickvals=((starts + ends - 1) / 2).tolist(),
        ticktext=[web.text(panel.groups.names[sorted_groups[at]]) for at in starts],
        showgrid=False,
        autorange="reversed",
        scaleanchor="x",
        constrain="domain",
    )
    shapes = [line for at in (starts[1:] - 0.5).tolist() for line in _separators(at)]
    return web.make(
        "attention",
        panel.seen.title,
        f"{attention.caption([panel], 'light grey')} {protocol([panel.seen.setting])}",
        _matrix(panel),
        web.layout(across, up, height=HEIGHT, shapes=shapes, annotations=_nothing(panel)),
        notes=(f"After round {panel.round}: {attention.measured(panel)}.", *notes),
        runs=[panel.seen.run.id],
    )


def _matrix(panel: Panel) -> list[Json]:
    """The weights by their logarithms; below them in plain colours those that are too small for the scale, and none at all."""
    place = np.ix_(panel.order, panel.order)
    weights, shares, clients = panel.weights[place], 100 * panel.shares[place], panel.order.tolist()
    low, high = attention.scale(weights)
    told = [
        [[i, j, *web.numbers([weight, share])] for j, weight, share in zip(clients, *row, strict=True)]
        for i, row in zip(clients, zip(weights, shares, strict=True), strict=True)
    ]
    hover: Json = {
        "customdata": told,
        "hovertemplate": (
            "client %{customdata[0]} on client %{customdata[1]}: %{customdata[2]:.3g}, %{customdata[3]:.2f} % of its weights on "
            f"others<br>round {panel.round}, run {panel.seen.run.id}<extra></extra>"
        ),
    }
    there = np.abs(weights) >= low
    signed = bool((weights < 0).any())
    decades = np.log10(np.abs(weights), where=there, out=np.full_like(weights, np.nan))
    z, span = decades, [math.log10(low), math.log10(high)]
    if signed:
        z, most = np.sign(weights) * (decades - span[0] + SEEN), span[1] - span[0] + SEEN
        span = [-most, most]
    ticks = _ticks(low, high, signed)
    return [
        _plain(np.isnan(weights), web.GREY) | {"hoverinfo": "skip"},
        _plain(~there & np.isfinite(weights), BELOW) | hover,
        {
            "type": "heatmap",
            "z": [web.numbers(row) for row in z],
            "colorscale": "RdBu" if signed else "Viridis",
            "reversescale": not signed,  # the more, the darker, as in print
            "zmin": span[0],
            "zmax": span[1],
            "hoverongaps": False,
            "colorbar": {
                "title": {"text": "Weight on the other's model", "side": "top"},
                "orientation": "h",
                "y": 1.01,
                "yanchor": "bottom",
                "thickness": 12,
                "tickvals": web.numbers(ticks.values()),
                "ticktext": list(ticks),
            },
            **hover,
        },
    ]


def _ticks(low: float, high: float, signed: bool) -> dict[str, float]:
    """Powers of ten -> their places on the scale."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    named = {f"10<sup>{k}</sup>" if k else "1": float(k) for k in powers}
    if not signed:
        return named
    beyond = {name: k - math.log10(low) + SEEN for name, k in named.items()}
    return {f"-{name}": -at for name, at in reversed(beyond.items())} | {"0": 0.0} | beyond


def _plain(where: np.ndarray[tuple[int, int], np.dtype[np.bool_]], colour: str) -> Json:
    return {
        "type": "heatmap",
        "z": [[1 if here else None for here in row] for row in where.tolist()],
        "colorscale": [[0, colour], [1, colour]],
        "showscale": False,
        "hoverongaps": False,
    }


def _nothing(panel: Panel) -> list[Json]:
    """A word on the matrix where there is nothing to see on it."""
    if (said := attention.nothing(panel.weights)) is None:
        return []
    middle = {"x": 0.5, "y": 0.5, "xref": "x domain", "yref": "y domain", "showarrow": False}
    look = {"bgcolor": "#ffffff", "font": {"color": "#1d1f23"}, "borderpad": 4}
    return [{**middle, **look, "text": said.replace("\n", "<br>")}]


def _separators(at: float) -> list[Json]:
    look = {"type": "line", "line": {"color": web.GREY, "width": 1}}
    return [
        {**look, "xref": "x", "x0": at, "x1": at, "yref": "y domain", "y0": 0, "y1": 1},
        {**look, "yref": "y", "y0": at, "y1": at, "xref": "x domain", "x0": 0, "x1": 1},
    ]
