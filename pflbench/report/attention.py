"""`plot attention`: which clients draw on whose models (FedAMP, HeurFedAMP, FedFomo, APPLE), beside the clients' true groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report import style
from pflbench.report.chosen import Filters, Observed, cut, one_per_line, protocol, with_arrays
from pflbench.store import observed, read
from pflbench.store.read import Integers, PartitionInfo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

ARRAYS = ("attention", "fomo_weights", "relationships")  # [N, N], row i: what client i takes of each client's model
COMMAND = "pflbench run -m fedamp -m apple --partition groups --observe-every 10"
LEFT, RIGHT, STRIP = 0.72, 0.5, 0.07


@dataclass(frozen=True)
class Groups:
    """of[i] is client i's group; `names` their dominating classes; true: the partition made them, else they are read off it."""

    of: Integers
    names: tuple[str, ...]
    true: bool


@dataclass(frozen=True)
class Panel:
    """shares [N, N]: of client i's weights on others the part on client j, NaN on the diagonal; clients in `order`."""

    seen: Observed
    round: int
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
    others = weights.astype(np.float64)
    np.fill_diagonal(others, np.nan)
    total = np.nansum(np.abs(others), axis=1, keepdims=True)
    made: Matrix = others / np.where(total > 0, total, 1)
    return made


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
    return Panel(of, t, made, held, order, total, inside, chance, recovered(made, held.of))


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


def _draw(panels: Sequence[Panel]) -> Figure:
    columns = min(len(panels), 2)
    width = style.COLUMN if columns == 1 else style.PAGE
    side = (width - LEFT - RIGHT - (columns - 1) * (LEFT + RIGHT)) / columns
    figure, axes = style.grid(len(panels), columns, width, side, titles=4, below=0, left=LEFT, right=RIGHT, gap=LEFT + RIGHT)
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
        _draw_matrix(ax, panel)
        _draw_groups(ax, panel)
        head = f"{panel.seen.row.label}, after round {panel.round}"
        ax.set_title("\n".join((head, panel.seen.setting.title, *measured(panel).split(", ", 1))))
        ax.set_xlabel("Client whose model is drawn on" if k + columns >= len(panels) else "")
    return figure


def _draw_matrix(ax: Axes, panel: Panel) -> None:
    drawn = 100 * panel.shares[np.ix_(panel.order, panel.order)]
    most = float(np.nanmax(np.abs(drawn), initial=0)) or 1.0
    negative = bool((drawn < 0).any())
    image = ax.imshow(
        drawn,
        cmap="PuOr_r" if negative else "viridis",
        vmin=-most if negative else 0,
        vmax=most,
        aspect="auto",
        interpolation="nearest",
    )
    ax.set_facecolor("#bbbbbb")  # the diagonal
    box = ax.get_position()
    beside = ax.figure.add_axes((box.x1 + 0.06 / _width(ax), box.y0, STRIP / _width(ax), box.height))
    bar = ax.figure.colorbar(image, cax=beside)
    bar.set_label("Share of a client's weights on others (%)", size=6, labelpad=1)
    bar.ax.tick_params(labelsize=6, pad=1)
    ax.grid(visible=False)
    every = max(1, len(drawn) // 10)
    ax.set_xticks(range(0, len(drawn), every), [str(client) for client in panel.order[::every]])
    ax.set_yticks([])


def _draw_groups(ax: Axes, panel: Panel) -> None:
    """Lines between the groups, and left of the matrix a strip in two greys with each group's classes beside it."""
    sorted_groups = panel.groups.of[panel.order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    ends = np.append(starts[1:], len(sorted_groups))
    for at in starts[1:] - 0.5:
        ax.axhline(at, color="white", linewidth=0.6)
        ax.axvline(at, color="white", linewidth=0.6)
    box = ax.get_position()
    strip = ax.figure.add_axes((box.x0 - (STRIP + 0.03) / _width(ax), box.y0, STRIP / _width(ax), box.height))
    strip.imshow(np.arange(len(starts)).repeat(ends - starts)[:, None] % 2, cmap="gray", vmin=-1, vmax=2, aspect="auto")
    strip.set_xticks([])
    strip.set_yticks((starts + ends - 1) / 2, [panel.groups.names[sorted_groups[at]] for at in starts])
    strip.tick_params(length=0, labelsize=6, pad=1)
    strip.set_ylabel("Group: its classes" if panel.groups.true else "Most frequent class", labelpad=1)
    strip.grid(visible=False)


def _width(ax: Axes) -> float:
    return float(ax.figure.get_figure(root=True).get_figwidth())


def caption(panels: Sequence[Panel]) -> str:
    named = "; ".join(
        f"{panel.seen.title}, after round {panel.round} (their sum: {panel.total:.3g}, median over clients)" for panel in panels
    )
    return (
        "Row i: how client i's weights on other clients' models are divided among them, in percent of the sum of their sizes; "
        f"the weight on its own model (grey diagonal) left out: {named}. Clients are ordered by the classes that dominate their "
        "data; lines separate the partition's groups where it has any, else clients with different most frequent classes. On own "
        "group: mean share on clients of the same group, and what equal weights would give. ARI: adjusted Rand index of these "
        "groups and of as many clusters of clients, by average linkage of their mean shares on each other (1: the same, 0: as by "
        "chance)."
    )
