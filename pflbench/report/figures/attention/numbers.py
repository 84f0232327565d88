"""Stored weights of clients on each other's models, and how well they reveal the clients' groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Engine

from pflbench.errors import UserError
from pflbench.report.selection import Observed
from pflbench.store import arrays, partitions
from pflbench.store.arrays import Floats, Integers
from pflbench.store.partitions import PartitionRecord

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]

FLOOR = 1e-6  # of a weight: with less, nobody gets anything of another's model


@dataclass(frozen=True)
class ClientGroups:
    """of[i]: client i's group; names: the groups' dominating classes; true: the partition made the groups."""

    of: Integers
    names: tuple[str, ...]
    true: bool

    @property
    def heading(self) -> str:
        return "Group: its classes" if self.true else "Most frequent class"


@dataclass(frozen=True)
class AttentionPanel:
    """weights [N, N]: of client i on client j's model; shares: their parts of the sum of their sizes. NaN on the diagonal.

    Clients in `order`.
    """

    seen: Observed
    round: int
    weights: Matrix
    shares: Matrix
    groups: ClientGroups
    order: Integers
    total: float  # median over clients of the sum of their weights' sizes on others
    inside: float  # mean share on one's own group
    by_chance: float
    rand: float  # adjusted Rand index of the clients' clusters and the groups

    def spans(self) -> tuple[Integers, Integers, list[str]]:
        """For each group in `order`: the positions of its first client and after its last one, and its classes."""
        sorted_groups = self.groups.of[self.order]
        starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
        return starts, np.append(starts[1:], len(sorted_groups)), [self.groups.names[sorted_groups[at]] for at in starts]


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


def groups(partition: PartitionRecord) -> ClientGroups:
    """The partition's groups or sets of classes; without them, by each client's most frequent class."""
    counts = partition.train + partition.test
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


def panel(engine: Engine, of: Observed, t: int | None = None) -> AttentionPanel:
    """The run's matrix after t rounds, by default the last stored one. Raises UserError for a run without a partition."""
    if of.run.partition is None:
        raise UserError(f"Run {of.run.id} has no partition to order its clients by.", "Leave it out with --method.")
    partition, t = partitions.find(engine, of.run.partition), of.rounds[-1] if t is None else t
    weights = arrays.read(engine, of.run.id, of.name, [t])[t]
    held, made = groups(partition), shares(weights)
    others = np.where(np.eye(len(weights), dtype=bool), 0, np.abs(weights))
    total = float(np.nanmedian(others.sum(axis=1)))
    dominance = (partition.train + partition.test).max(axis=1) / (partition.train + partition.test).sum(axis=1)
    order = np.lexsort((-dominance, held.of))
    same = held.of[:, None] == held.of[None, :]
    attends = ~np.isnan(made).all(axis=1) & (np.nansum(np.abs(made), axis=1) > 0)
    inside = float(np.nansum(np.abs(made) * same, axis=1)[attends].mean()) if attends.any() else 0.0
    chance = float(((same.sum(axis=1) - 1) / max(1, len(same) - 1)).mean())
    return AttentionPanel(of, t, _without_own(weights), made, held, order, total, inside, chance, recovered(made, held.of))


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


def measured(panel: AttentionPanel) -> str:
    """Whether shares come from weights large enough to matter."""
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


def powers(low: float, high: float) -> range:
    """The powers of ten on the scale."""
    return range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)


def nothing(weights: Matrix) -> str | None:
    """A note that no weight reaches FLOOR."""
    most = float(np.nanmax(np.abs(weights), initial=0))
    if most >= FLOOR:
        return None
    return f"all weights on others\nbelow 1e{math.ceil(math.log10(most))}" if most else "all weights on others\nare 0"
