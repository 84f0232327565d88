"""The weights of clients on each other's models (FedAMP, HeurFedAMP, FedFomo, APPLE), beside the clients' true groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import render, style, web
from pflbench.report.looks import Look
from pflbench.report.selection import Filters, Observed, cut, first_seeds, observed_titles
from pflbench.report.style import small
from pflbench.report.traces import GREY, Axis, Panel, Trace, lettered
from pflbench.report.web import Interactive, Json
from pflbench.store import arrays, partitions
from pflbench.store.arrays import Integers
from pflbench.store.partitions import PartitionRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

ARRAYS = ("attention", "fomo_weights", "relationships")  # [N, N], row i: what client i takes of each client's model
COMMAND = "pflbench run -m fedamp -m apple --partition groups --save-artifacts-every 10"
DIAGONAL = "#bbbbbb"
HEIGHT = 520  # on a page, pixels
TICKS = 10
BELOW = "#dddddd"  # on a page, what is less than the scale has
FLOOR = 1e-6  # of a weight: with less, nobody gets anything of another's model


@dataclass(frozen=True)
class ClientGroups:
    """of[i]: client i's group; names: the groups' dominating classes; true: the partition made the groups."""

    of: Integers
    names: tuple[str, ...]
    true: bool


@dataclass(frozen=True)
class Attention:
    """The clients in the order of their groups, and their weights and shares in this order.

    weights [N, N]: of client clients[i] on the model of client clients[j]; shares: their parts of the sum of the sizes of the
    row, a row of zeros stays one. NaN on the diagonal. measured: in words, whether shares come from weights large enough to
    matter, and whether they reveal the groups.
    """

    seen: Observed
    round: int
    clients: list[int]
    weights: Matrix
    shares: Matrix
    groups: ClientGroups
    measured: str


def plot(engine: Engine, filters: Filters = Filters(), *, round: int | None = None) -> style.Drawing:
    """A panel per method and setting after `round` rounds, by default the last that was kept; of several seeds the first.

    Raises UserError where no run kept a matrix, or none of that round.
    """
    seen, notes = first_seeds(engine, filters, ARRAYS, COMMAND)
    having = [one for one in seen if round is None or round in one.rounds]
    if not having:
        kept = ", ".join(map(str, sorted({t for one in seen for t in one.rounds})))
        raise UserError(f"No run kept its matrix after round {round}.", f"They were kept after: {kept}.")
    chosen, notes = cut(having, notes, filters)
    drawn = [load(engine, one, round) for one in chosen]
    titles = zip(observed_titles(chosen, named=True), drawn, strict=True)
    return render.drawing(
        [_panel(one) for one in drawn],
        [f"{title}, after round {one.round}" for title, one in titles],
        caption(drawn),
        notes,
        height=3.0,
        cell=2.6,
        square=True,
    )


def page(engine: Engine, filters: Filters, most: int | None = None) -> list[Interactive]:
    """The last stored round of the first seed. Raises UserError without stored matrices."""
    seen, notes = first_seeds(engine, filters, ARRAYS, COMMAND)
    return [_page(load(engine, one), notes) for one in seen[:most]]


def caption(drawn: Sequence[Attention], below: str = "white") -> str:
    """below: the colour of weights below the scale."""
    named = lettered([f"{one.seen.title}, after round {one.round}: {one.measured}" for one in drawn])
    return (
        "Row i: client i's weights on other clients' models, by the logarithm of their sizes; "
        f"{below}: less than the scale has; "
        f"grey: the weight on its own model, and clients without weights. {named}. Weight on others: the sum of the sizes, "
        "median over clients. Clients are ordered by the classes that dominate their data; lines separate the partition's "
        "groups where it has any, else clients with different most frequent classes. On own group: mean share of these "
        "weights on clients of the same group, and what equal weights would give. ARI: adjusted Rand index of these groups and "
        "of as many clusters of clients, by average linkage of their mean shares on each other (1: the same, 0: as by chance)."
    )


def load(engine: Engine, of: Observed, t: int | None = None) -> Attention:
    """The run's matrix after t rounds, by default the last stored one."""
    assert of.run.partition is not None  # it is stored before a run's first round
    partition, t = partitions.find(engine, of.run.partition), of.rounds[-1] if t is None else t
    weights = arrays.read(engine, of.run.id, of.name, [t])[t].astype(np.float64)
    sizes = np.abs(weights)
    np.fill_diagonal(weights, np.nan)
    np.fill_diagonal(sizes, 0)
    total = np.nansum(sizes, axis=1)
    shares: Matrix = weights / np.where(total > 0, total, 1)[:, None]

    training = slice(len(weights))  # new clients, which never train, are the last of the partition
    grouped = groups(partition)
    grouped = replace(grouped, of=grouped.of[training])
    same = grouped.of[:, None] == grouped.of[None, :]
    inside = np.nansum(np.abs(shares) * same, axis=1)[total > 0].mean() if (total > 0).any() else 0.0
    by_chance = ((same.sum(axis=1) - 1) / max(1, len(same) - 1)).mean()
    measured = (
        f"weight on others {np.nanmedian(sizes.sum(axis=1)):.2g}, on own group {100 * inside:.0f} % "
        f"(by chance {100 * by_chance:.0f} %), ARI {recovered(shares, grouped.of):.2f}"
    )
    held = partition.counts[training]
    order = np.lexsort((-held.max(axis=1) / held.sum(axis=1), grouped.of))
    place = np.ix_(order, order)
    return Attention(of, t, order.tolist(), weights[place], shares[place], grouped, measured)


def groups(partition: PartitionRecord) -> ClientGroups:
    """The partition's groups or sets of classes; without them, by each client's most frequent class."""
    counts = partition.counts
    clients, classes = counts.shape
    if partition.scheme == "groups":
        number = partition.spec["groups"]
        of = np.repeat(np.arange(number), [len(ids) for ids in np.array_split(np.arange(clients), number)])
        held = np.array_split(np.arange(classes), number)
        return ClientGroups(of, tuple(_classes(ids.tolist()) for ids in held), True)
    true = "pathological" in (partition.scheme, partition.spec.get("kind"))
    sets = [tuple(row.nonzero()[0].tolist()) if true else (int(row.argmax()),) for row in counts]
    different = sorted(set(sets))
    return ClientGroups(np.array([different.index(one) for one in sets]), tuple(_classes(one) for one in different), true)


def _classes(ids: Sequence[int]) -> str:
    if len(ids) > 3 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return ", ".join(map(str, ids)) if len(ids) < 4 else f"{ids[0]}, {ids[1]}, ..."


def recovered(shares: Matrix, groups: Integers) -> float:
    """How well mutual attention tells the groups: the adjusted Rand index (1: exactly, 0: as by chance) of as many clusters.

    Clusters are made by average linkage; clients are the nearer, the larger the mean of their shares on each other.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import adjusted_rand_score

    mutual = np.nan_to_num(np.abs(shares))
    mutual = (mutual + mutual.T) / 2
    if len(mutual) < 2:
        return 1.0
    apart = mutual.max() - mutual
    np.fill_diagonal(apart, 0)
    clusters = fcluster(linkage(squareform(apart, checks=False), "average"), len(np.unique(groups)), "maxclust")
    return float(adjusted_rand_score(groups, clusters))


def _panel(of: Attention) -> Panel:
    grouped = of.groups.of[of.clients]
    starts = np.flatnonzero(np.diff(grouped, prepend=-1))
    ends = np.append(starts[1:], len(grouped))
    across = {float(k): str(of.clients[k]) for k in range(0, len(grouped), max(1, len(grouped) // TICKS))}
    up = {(start + end - 1) / 2: of.groups.names[grouped[start]] for start, end in zip(starts.tolist(), ends, strict=True)}
    first, last = -0.5, len(grouped) - 0.5
    between = [([at, at], [first, last]) for at in (starts[1:] - 0.5).tolist()]
    look = Look(GREY, "o", 0, 0)
    return Panel(
        of.seen.title,
        Axis("Client whose model is drawn on", limits=(first, last), ticks=across, grid=False),
        Axis("Group: its classes" if of.groups.true else "Most frequent class", limits=(last, first), ticks=up, grid=False),
        [Trace(x, y, look, draws="lines", width=0.5) for line in between for x, y in (line, line[::-1])],
        runs=(of.seen.run.id,),
        settings=(of.seen.setting,),
        height=HEIGHT,
        draw=partial(_draw_matrix, of.weights),
    )


def _draw_matrix(weights: Matrix, ax: Axes) -> None:
    from matplotlib import colormaps

    norm, low, ticks = scale(weights)
    if signed := ticks[0] < 0:
        drawn, colours = weights, colormaps["PuOr_r"]
    else:
        # The more, the darker: what is below the scale is white. A logarithm has no 0.
        drawn, colours = np.maximum(weights, np.finfo(float).tiny), colormaps["viridis_r"].with_extremes(under="white")
    image = ax.imshow(np.ma.masked_invalid(drawn), cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    ax.set_facecolor(DIAGONAL)
    below = "min" if not signed and (weights < low).any() else "neither"
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0, 0.035, 1)), extend=below)
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.set_label("Weight on the other's model", size=small(), labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)
    bar.ax.tick_params(which="minor", length=0)
    if said := nothing(weights):
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", va="center", bbox={"facecolor": "white", "linewidth": 0.5})


def scale(weights: Matrix) -> tuple[Normalize, float, list[float]]:
    """The logarithmic scale of the colours, the smallest size that it tells from 0, and its ticks: 0 and powers of ten.

    From the smallest size above FLOOR to the largest, 1 at least: little has the colour of little, even where nobody has more.
    Weights with a sign have it to both sides of 0.
    """
    from matplotlib.colors import LogNorm, SymLogNorm

    sizes = np.abs(weights[np.isfinite(weights)])
    high = max(1.0, sizes.max(initial=0))
    seen = sizes[sizes >= FLOOR]
    low = min(10.0 ** math.floor(math.log10(seen.min())) if len(seen) else FLOOR, high / 10)
    ticks = [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    if (weights < 0).any():
        return SymLogNorm(low, linscale=0.5, vmin=-high, vmax=high), low, [*(-tick for tick in reversed(ticks)), 0.0, *ticks]
    return LogNorm(low, high), low, ticks


def nothing(weights: Matrix) -> str | None:
    """A note that no weight reaches FLOOR."""
    most = float(np.nanmax(np.abs(weights), initial=0))
    if most >= FLOOR:
        return None
    return f"all weights on others\nbelow 1e{math.ceil(math.log10(most))}" if most else "all weights on others\nare 0"


def _page(of: Attention, notes: tuple[str, ...]) -> Interactive:
    figure = web.figure(
        "attention",
        _panel(of),
        caption([of], "light grey"),
        (f"After round {of.round}: {of.measured}.", *notes),
        data=_matrix(of),
        annotations=_nothing(of.weights),
    )
    figure.spec["layout"]["xaxis"] |= {"constrain": "domain"}
    figure.spec["layout"]["yaxis"] |= {"scaleanchor": "x", "constrain": "domain"}
    return figure


def _matrix(of: Attention) -> list[Json]:
    """Weights by their place on the scale; weights below the scale, and missing ones, in plain colours."""
    weights, shares = of.weights, 100 * of.shares
    norm, low, ticks = scale(weights)
    customdata = [
        [[i, j, *web.numbers([weights[row, column], shares[row, column]])] for column, j in enumerate(of.clients)]
        for row, i in enumerate(of.clients)
    ]
    hover: Json = {
        "customdata": customdata,
        "hovertemplate": (
            "client %{customdata[0]} on client %{customdata[1]}: %{customdata[2]:.3g}, %{customdata[3]:.2f} % of its weights on "
            f"others<br>round {of.round}, run {of.seen.run.id}<extra></extra>"
        ),
    }
    signed, there = ticks[0] < 0, np.abs(weights) >= low
    return [
        _plain(np.isnan(weights), GREY) | {"hoverinfo": "skip"},
        _plain(~there & np.isfinite(weights), BELOW) | hover,
        {
            "type": "heatmap",
            "z": [web.numbers(row) for row in np.where(there, norm(np.where(there, weights, 1)), np.nan)],
            "colorscale": "RdBu" if signed else "Viridis",
            "reversescale": not signed,  # the more, the darker, as in print
            "zmin": 0,
            "zmax": 1,
            "hoverongaps": False,
            "colorbar": {
                "title": {"text": "Weight on the other's model", "side": "top"},
                "orientation": "h",
                "y": 1.01,
                "yanchor": "bottom",
                "thickness": 12,
                "tickvals": web.numbers(np.asarray(norm(ticks))),
                "ticktext": [f"{tick:g}" for tick in ticks],
            },
            **hover,
        },
    ]


def _plain(where: np.ndarray[tuple[int, int], np.dtype[np.bool_]], colour: str) -> Json:
    return {
        "type": "heatmap",
        "z": [[1 if here else None for here in row] for row in where.tolist()],
        "colorscale": [[0, colour], [1, colour]],
        "showscale": False,
        "hoverongaps": False,
    }


def _nothing(weights: Matrix) -> list[Json]:
    """A note on a matrix without visible weights."""
    if (said := nothing(weights)) is None:
        return []
    middle = {"x": 0.5, "y": 0.5, "xref": "x domain", "yref": "y domain", "showarrow": False}
    look = {"bgcolor": "#ffffff", "font": {"color": "#1d1f23"}, "borderpad": 4}
    return [{**middle, **look, "text": said.replace("\n", "<br>")}]
