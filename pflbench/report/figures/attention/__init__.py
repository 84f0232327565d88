"""The weights of clients on each other's models (FedAMP, HeurFedAMP, FedFomo, APPLE), beside the clients' true groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import render, style, web
from pflbench.report.figures.attention import numbers
from pflbench.report.figures.attention.numbers import AttentionPanel
from pflbench.report.looks import Look
from pflbench.report.selection import Filters, cut, observed_titles, one_per_line, with_arrays
from pflbench.report.style import small
from pflbench.report.traces import GREY, Axis, Panel, Trace, lettered
from pflbench.report.web import Interactive, Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARRAYS = ("attention", "fomo_weights", "relationships")  # [N, N], row i: what client i takes of each client's model
COMMAND = "pflbench run -m fedamp -m apple --partition groups --save-artifacts-every 10"
DIAGONAL = "#bbbbbb"
HEIGHT = 520  # on a page, pixels
TICKS = 10
BELOW = "#dddddd"  # on a page, what is less than the scale has
SEEN = 0.5  # decades: from 0 to the least weight that is told from it, where weights have a sign


def plot(engine: Engine, filters: Filters = Filters(), *, round: int | None = None) -> style.Drawing:
    """A panel per method and setting after `round` rounds, by default the last that was kept; of several seeds the first.

    Raises UserError where no run kept a matrix, or none of that round.
    """
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ARRAYS, COMMAND))
    having = [one for one in seen if round is None or round in one.rounds]
    if not having:
        kept = ", ".join(map(str, sorted({t for one in seen for t in one.rounds})))
        raise UserError(f"No run kept its matrix after round {round}.", f"They were kept after: {kept}.")
    chosen, notes = cut(having, filters)
    panels = [numbers.panel(engine, one, round) for one in chosen]
    titles = zip(observed_titles(chosen, named=True), panels, strict=True)
    return render.drawing(
        [_panel(panel) for panel in panels],
        [f"{title}, after round {panel.round}" for title, panel in titles],
        caption(panels),
        (*found.notes, *notes),
        height=3.0,
        cell=2.6,
        square=True,
    )


def _panel(panel: AttentionPanel) -> Panel:
    starts, ends, classes = panel.spans()
    of, every = panel.seen, max(1, len(panel.order) // TICKS)
    across = {float(k): str(panel.order[k]) for k in range(0, len(panel.order), every)}
    up = dict(zip(((starts + ends - 1) / 2).tolist(), classes, strict=True))
    first, last = -0.5, len(panel.order) - 0.5
    between = [([at, at], [first, last]) for at in (starts[1:] - 0.5).tolist()]
    look = Look(GREY, "o", 0, 0)
    return Panel(
        of.title,
        Axis("Client whose model is drawn on", limits=(first, last), ticks=across, grid=False),
        Axis(panel.groups.heading, limits=(last, first), ticks=up, grid=False),
        [Trace(x, y, look, draws="lines", width=0.5) for line in between for x, y in (line, line[::-1])],
        runs=(of.run.id,),
        settings=(of.setting,),
        height=HEIGHT,
        draw=partial(_draw_matrix, panel),
    )


def _draw_matrix(panel: AttentionPanel, ax: Axes) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    drawn = np.ma.masked_invalid(panel.weights[np.ix_(panel.order, panel.order)])
    low, high = numbers.scale(drawn.compressed())
    norm: Normalize
    if (drawn < 0).any():
        colours, norm = colormaps["PuOr_r"], SymLogNorm(low, linscale=0.5, vmin=-high, vmax=high)
    else:
        # The more, the darker: what is below the scale is white.
        colours, norm = colormaps["viridis_r"].with_extremes(under="white"), LogNorm(low, high, clip=False)
        drawn = np.ma.array(np.maximum(drawn.data, np.finfo(float).tiny), mask=drawn.mask)  # a logarithm has no 0
    image = ax.imshow(drawn, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    ax.set_facecolor(DIAGONAL)
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.035, 1)), extend="min" if (drawn < low).any() else "neither")
    if (drawn >= 0).all():
        ticks = [10.0**k for k in numbers.powers(low, high)]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.set_label("Weight on the other's model", size=small(), labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)
    bar.ax.tick_params(which="minor", length=0)
    if said := numbers.nothing(panel.weights):
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", va="center", bbox={"facecolor": "white", "linewidth": 0.5})


def caption(panels: Sequence[AttentionPanel], below: str = "white") -> str:
    """below: the colour of weights below the scale."""
    named = lettered([f"{panel.seen.title}, after round {panel.round}: {numbers.measured(panel)}" for panel in panels])
    return (
        "Row i: client i's weights on other clients' models, by the logarithm of their sizes; "
        f"{below}: less than the scale has; "
        f"grey: the weight on its own model, and clients without weights. {named}. Weight on others: the sum of the sizes, "
        "median over clients. Clients are ordered by the classes that dominate their data; lines separate the partition's "
        "groups where it has any, else clients with different most frequent classes. On own group: mean share of these "
        "weights on clients of the same group, and what equal weights would give. ARI: adjusted Rand index of these groups and "
        "of as many clusters of clients, by average linkage of their mean shares on each other (1: the same, 0: as by chance)."
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """The last stored round of the first seed. Raises UserError without stored matrices."""
    found = filters.select(engine)
    seen = one_per_line(with_arrays(engine, found, ARRAYS, COMMAND))
    panels, left_out = web.possible(seen[:most], partial(numbers.panel, engine))
    return [_page(panel, (*found.notes, *left_out)) for panel in panels]


def _page(panel: AttentionPanel, notes: tuple[str, ...]) -> Interactive:
    made = _panel(panel)
    figure = web.figure(
        "attention",
        made,
        caption([panel], "light grey"),
        (f"After round {panel.round}: {numbers.measured(panel)}.", *notes),
        data=_matrix(panel),
        annotations=_nothing(panel),
    )
    figure.spec["layout"]["xaxis"] |= {"constrain": "domain"}
    figure.spec["layout"]["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
    return figure


def _matrix(panel: AttentionPanel) -> list[Json]:
    """Weights on a logarithmic scale; weights below the scale, and missing ones, in plain colours."""
    place = np.ix_(panel.order, panel.order)
    weights, shares, clients = panel.weights[place], 100 * panel.shares[place], panel.order.tolist()
    low, high = numbers.scale(weights)
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
        _plain(np.isnan(weights), GREY) | {"hoverinfo": "skip"},
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
    """Powers of ten -> positions on the scale."""
    named = {f"10<sup>{k}</sup>" if k else "1": float(k) for k in numbers.powers(low, high)}
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


def _nothing(panel: AttentionPanel) -> list[Json]:
    """A note on a matrix without visible weights."""
    if (said := numbers.nothing(panel.weights)) is None:
        return []
    middle = {"x": 0.5, "y": 0.5, "xref": "x domain", "yref": "y domain", "showarrow": False}
    look = {"bgcolor": "#ffffff", "font": {"color": "#1d1f23"}, "borderpad": 4}
    return [{**middle, **look, "text": said.replace("\n", "<br>")}]
