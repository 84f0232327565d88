"""`plot attention`: which clients draw on whose models (FedAMP, HeurFedAMP, FedFomo, APPLE), beside the clients' true groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, Observed, cut, observed_titles, one_per_line, protocol, with_arrays
from pflbench.report.layout import Sheet, lettered, small
from pflbench.store import observed, read
from pflbench.store.read import Floats, Integers, PartitionInfo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

ARRAYS = ("attention", "fomo_weights", "relationships")  # [N, N], row i: what client i takes of each client's model
COMMAND = "pflbench run -m fedamp -m apple --partition groups --observe-every 10"
FLOOR = 1e-6  # of a weight: with less, nobody gets anything of another's model
DIAGONAL = "#bbbbbb"


@dataclass(frozen=True)
class Groups:
    """of[i] is client i's group; `names` their dominating classes; true: the partition made them, else they are read off it."""

    of: Integers
    names: tuple[str, ...]
    true: bool


@dataclass(frozen=True)
class Panel:
    """weights [N, N]: of client i on client j's model; shares: their parts of the sum of their sizes. NaN on the diagonal.

    Clients in `order`.
    """

    seen: Observed
    round: int
    weights: Matrix
    shares: Matrix
    groups: Groups
    order: Integers
    total: float  # median over clients of the sum of their weights' sizes on others
    inside: float  # mean share on one's own group
    by_chance: float
    rand: float  # adjusted Rand index of the clients' clusters and the groups


def plot(
    engine: Engine,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
    partitions: Collection[str] = (),
    status: Collection[str] = ("finished",),
    round: int | None = None,
) -> style.Drawing:
    """A panel per method and setting after `round` rounds, by default the last that was kept; of several seeds the first.

    Raises UserError where no run kept a matrix, or none of that round.
    """
    filters = Filters(tuple(methods), tuple(datasets), tuple(partitions), status)
    found = filters.collect(engine)
    seen = one_per_line(with_arrays(engine, found, ARRAYS, COMMAND))
    having = [one for one in seen if round is None or round in one.rounds]
    if not having:
        kept = ", ".join(map(str, sorted({t for one in seen for t in one.rounds})))
        raise UserError(f"No run kept its matrix after round {round}.", f"They were kept after: {kept}.")
    chosen, notes = cut(having, filters)
    panels = [panel(engine, one, one.rounds[-1] if round is None else round) for one in chosen]
    runs = tuple(sorted(made.seen.run.id for made in panels))
    with style.context():
        figure = _draw(panels)
        drawing = (figure, caption(panels), (*found.notes, *notes), runs, protocol([one.setting for one in chosen]))
        return style.Drawing(*drawing)


def shares(weights: Matrix) -> Matrix:
    """Each row without its diagonal (NaN), divided by the sum of its sizes; a row of zeros stays one."""
    others = _without_own(weights)
    total = np.nansum(np.abs(others), axis=1, keepdims=True)
    made: Matrix = others / np.where(total > 0, total, 1)
    return made


def _without_own(weights: Matrix) -> Matrix:
    others: Matrix = weights.astype(np.float64)
    np.fill_diagonal(others, np.nan)
    return others


def groups(partition: PartitionInfo) -> Groups:
    """By the partition's own groups or sets of classes; where it has none, by each client's most frequent class."""
    counts = partition.train + partition.test
    clients, classes = counts.shape
    if partition.scheme == "groups":
        number = partition.spec["groups"]
        of = np.repeat(np.arange(number), [len(ids) for ids in np.array_split(np.arange(clients), number)])
        held = np.array_split(np.arange(classes), number)
        return Groups(of, tuple(_classes(ids.tolist()) for ids in held), True)
    true = "pathological" in (partition.scheme, partition.spec.get("kind"))
    sets = [tuple(row.nonzero()[0].tolist()) if true else (int(row.argmax()),) for row in counts]
    different = sorted(set(sets))
    return Groups(np.array([different.index(one) for one in sets]), tuple(_classes(one) for one in different), true)


def _classes(ids: Sequence[int]) -> str:
    if len(ids) > 3 and ids[-1] - ids[0] == len(ids) - 1:
        return f"{ids[0]}-{ids[-1]}"
    return ", ".join(map(str, ids)) if len(ids) < 4 else f"{ids[0]}, {ids[1]}, ..."


def panel(engine: Engine, of: Observed, t: int) -> Panel:
    """The run's matrix after t rounds. Raises UserError for a run without a partition."""
    if of.run.partition is None:
        raise UserError(f"Run {of.run.id} has no partition to order its clients by.", "Leave it out with --method.")
    partition = read.partition(engine, of.run.partition)
    weights = observed.arrays(engine, of.run.id, of.name, [t])[t]
    held, made = groups(partition), shares(weights)
    others = np.where(np.eye(len(weights), dtype=bool), 0, np.abs(weights))
    total = float(np.nanmedian(others.sum(axis=1)))
    dominance = (partition.train + partition.test).max(axis=1) / (partition.train + partition.test).sum(axis=1)
    order = np.lexsort((-dominance, held.of))
    same = held.of[:, None] == held.of[None, :]
    attends = ~np.isnan(made).all(axis=1) & (np.nansum(np.abs(made), axis=1) > 0)
    inside = float(np.nansum(np.abs(made) * same, axis=1)[attends].mean()) if attends.any() else 0.0
    chance = float(((same.sum(axis=1) - 1) / max(1, len(same) - 1)).mean())
    return Panel(of, t, _without_own(weights), made, held, order, total, inside, chance, recovered(made, held.of))


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


def measured(panel: Panel) -> str:
    """Shares of nothing look like shares of much: attention can be clear-cut and too weak to matter."""
    own = f"on own group {100 * panel.inside:.0f} % (by chance {100 * panel.by_chance:.0f} %)"
    return f"weight on others {panel.total:.2g}, {own}, ARI {panel.rand:.2f}"


def scale(weights: Floats) -> tuple[float, float]:
    """The sizes between which weights are told apart, by their logarithm.

    From the smallest above FLOOR to the largest, 1 at least: little has the colour of little, even where nobody has more.
    """
    sizes = np.abs(weights[np.isfinite(weights)])
    high = max(1.0, sizes.max(initial=0))
    seen = sizes[sizes >= FLOOR]
    low = 10.0 ** math.floor(math.log10(seen.min())) if len(seen) else FLOOR
    return min(low, high / 10), high


def nothing(weights: Matrix) -> str | None:
    """In words, that no client draws on another by as much as FLOOR."""
    most = float(np.nanmax(np.abs(weights), initial=0))
    if most >= FLOOR:
        return None
    return f"all weights on others\nbelow 1e{math.ceil(math.log10(most))}" if most else "all weights on others\nare 0"


def _draw(panels: Sequence[Panel]) -> Figure:
    sheet = Sheet(len(panels), min(len(panels), 2), 0.0, cell=2.6, square=True)
    for k, (ax, panel) in enumerate(zip(sheet.axes, panels, strict=True)):
        _draw_matrix(ax, panel)
        _draw_groups(ax, panel)
        ax.set_xlabel("Client whose model is drawn on" if sheet.bottom(k) else "")
    of = observed_titles([panel.seen for panel in panels], named=True)
    sheet.name([f"{title}, after round {panel.round}" for title, panel in zip(of, panels, strict=True)])
    return sheet.finish()


def _draw_matrix(ax: Axes, panel: Panel) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    drawn = np.ma.masked_invalid(panel.weights[np.ix_(panel.order, panel.order)])
    low, high = scale(drawn.compressed())
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
        ticks = [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.set_label("Weight on the other's model", size=small(), labelpad=1)
    bar.ax.tick_params(labelsize=small(), pad=1)
    bar.ax.tick_params(which="minor", length=0)
    ax.grid(visible=False)
    every = max(1, len(drawn) // 10)
    ax.set_xticks(range(0, len(drawn), every), [str(client) for client in panel.order[::every]])
    ax.set_yticks([])
    if said := nothing(panel.weights):
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", va="center", bbox={"facecolor": "white", "linewidth": 0.5})


def _draw_groups(ax: Axes, panel: Panel) -> None:
    """Lines between the groups, and left of the matrix a strip in two greys with each group's classes beside it."""
    sorted_groups = panel.groups.of[panel.order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    ends = np.append(starts[1:], len(sorted_groups))
    for at in starts[1:] - 0.5:
        ax.axhline(at, color="#888888", linewidth=0.5)
        ax.axvline(at, color="#888888", linewidth=0.5)
    strip = ax.inset_axes((-0.05, 0, 0.035, 1))
    strip.imshow(np.arange(len(starts)).repeat(ends - starts)[:, None] % 2, cmap="gray", vmin=-1, vmax=2, aspect="auto")
    strip.set_xticks([])
    strip.set_yticks((starts + ends - 1) / 2, [panel.groups.names[sorted_groups[at]] for at in starts])
    strip.tick_params(length=0, labelsize=small(), pad=1)
    strip.set_ylabel("Group: its classes" if panel.groups.true else "Most frequent class", labelpad=1)
    strip.grid(visible=False)


def caption(panels: Sequence[Panel], below: str = "white") -> str:
    """below: the colour of what is less than the scale has."""
    named = lettered([f"{panel.seen.title}, after round {panel.round}: {measured(panel)}" for panel in panels])
    return (
        "Row i: client i's weights on other clients' models, by the logarithm of their sizes; "
        f"{below}: less than the scale has; "
        f"grey: the weight on its own model, and clients without weights. {named}. Weight on others: the sum of the sizes, "
        "median over clients. Clients are ordered by the classes that dominate their data; lines separate the partition's "
        "groups where it has any, else clients with different most frequent classes. On own group: mean share of these "
        "weights on clients of the same group, and what equal weights would give. ARI: adjusted Rand index of these groups and "
        "of as many clusters of clients, by average linkage of their mean shares on each other (1: the same, 0: as by chance)."
    )
