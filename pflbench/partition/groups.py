"""Groups of clients, each with its own dominating classes: FedAMP's practical setting (methods.md 3.4).

Departure: when the clients together ask for more of a class than there is, all of them get the same fraction of what
they asked for. Serving them in order would leave the last clients without the class, and in FedAMP's setting every
client has data of every class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Counts, Indices
from pflbench.spec import Groups


def shares(spec: Groups, labels: NDArray[np.integer[Any]], classes: int, stream: np.random.RandomState) -> list[Indices]:
    """One index array per client, drawn without replacement over the whole federation.

    Clients and classes are dealt to the groups evenly, in consecutive runs. `group_sizes[a]` counts the samples of each
    client of group a. Raises UserError for more groups than classes or clients, or more samples than there are.
    """
    class_sizes = np.bincount(labels, minlength=classes)
    group_of = _group_of(spec, classes)
    sizes = _client_sizes(spec, group_of, len(labels))
    dominating = np.array_split(np.arange(classes), spec.groups)
    clients = zip(sizes, group_of, strict=True)
    asked = [_asked(size, dominating[group], class_sizes, spec.dominant_share) for size, group in clients]
    held: list[list[Indices]] = [[] for _ in range(spec.clients)]
    for k, quotas in enumerate(np.stack(asked, axis=1)):
        pool = stream.permutation(np.flatnonzero(labels == k))
        if quotas.sum() > len(pool):
            quotas = apportion(len(pool), quotas)
        for client, piece in enumerate(np.split(pool, np.cumsum(quotas))[:-1]):
            held[client].append(piece)
    return [np.concatenate(pieces) for pieces in held]


def apportion(total: int, weights: NDArray[np.number[Any]]) -> Counts:
    """Whole numbers proportional to `weights` that sum to `total` (largest remainder, ties to the first).

    All zero if all weights are.
    """
    if not weights.any():
        return np.zeros(len(weights), dtype=np.int64)
    exact = total * weights / weights.sum()
    whole: Counts = np.floor(exact).astype(np.int64)
    first = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[first] += 1
    return whole


def _group_of(spec: Groups, classes: int) -> Counts:
    for what, number in (("classes", classes), ("clients", spec.clients)):
        if spec.groups > number:
            raise UserError(f"{spec.groups} groups cannot each have their own of {number} {what}.", f"At most {number} groups.")
    clients = np.array_split(np.arange(spec.clients), spec.groups)
    group_of: Counts = np.repeat(np.arange(spec.groups), [len(ids) for ids in clients])
    return group_of


def _client_sizes(spec: Groups, group_of: Counts, samples: int) -> Counts:
    if spec.group_sizes is None:
        return apportion(samples, np.ones(spec.clients))
    if len(spec.group_sizes) != spec.groups or min(spec.group_sizes) < 1:
        raise UserError(
            f"{len(spec.group_sizes)} group sizes for {spec.groups} groups: {', '.join(map(str, spec.group_sizes))}.",
            "Give one number of samples per client, at least 1, for each group.",
        )
    sizes: Counts = np.array(spec.group_sizes, dtype=np.int64)[group_of]
    if sizes.sum() > samples:
        raise UserError(
            f"The group sizes ask for {sizes.sum()} samples; the dataset has {samples}.",
            "Group sizes count the samples of one client. Make them smaller or use fewer clients.",
        )
    return sizes


def _asked(size: int, dominating: Indices, class_sizes: Counts, share: float) -> Counts:
    """What one client asks of each class: `share` of its size from the dominating classes, the rest from the others."""
    ours = np.isin(np.arange(len(class_sizes)), dominating)
    others = np.where(ours, 0, class_sizes)
    dominant = round(share * size) if others.any() else size
    return apportion(dominant, np.where(ours, class_sizes, 0)) + apportion(size - dominant, others)
