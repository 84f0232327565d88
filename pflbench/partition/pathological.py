"""Pathological partition: every client holds a few classes (methods.md 3.1, after McMahan et al., AISTATS 2017).

Where the quotas run out before the classes, the reference drops the remaining classes' samples without a word. That is an error
here: a benchmark on a fifth of its data should not look like one on all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbench.errors import UserError
from pflbench.partition.core import Indices, least_samples
from pflbench.spec import Pathological


def shares(spec: Pathological, labels: NDArray[np.integer[Any]], classes: int, stream: np.random.RandomState) -> list[Indices]:
    """One index array per client. Raises UserError if the classes cannot be dealt out."""
    takers = _takers(spec.clients, classes, spec.classes_per_client)
    least = least_samples(len(labels), spec.clients) if spec.min_samples is None else spec.min_samples
    return deal(takers, spec.clients, labels, least, stream, balanced=spec.balanced)


def deal(
    takers: list[list[int]],
    clients: int,
    labels: NDArray[np.integer[Any]],
    least: int,
    stream: np.random.RandomState,
    balanced: bool = False,
) -> list[Indices]:
    """Give class k, in stored order, to the clients `takers[k]` in consecutive runs; the last one takes the rest."""
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for k, chosen in enumerate(takers):
        samples = np.flatnonzero(labels == k)
        mean = len(samples) / len(chosen)
        if balanced:
            sizes = np.full(len(chosen) - 1, int(mean))
        else:
            sizes = _uneven(k, mean, least / len(takers), len(chosen) - 1, stream)
        for client, run in zip(chosen, np.split(samples, np.cumsum(sizes)), strict=True):
            held[client].append(run)
    return [np.concatenate(runs) for runs in held]


def _takers(clients: int, classes: int, per_client: int) -> list[list[int]]:
    """For each class the clients that get some of it: the first ceil(N C / K) with quota left."""
    if per_client > classes:
        raise UserError(
            f"{per_client} classes per client are more than the {classes} classes of this dataset.",
            f"Choose between 1 and {classes}.",
        )
    places = -(-clients * per_client // classes)
    quota = [per_client] * clients
    takers = []
    for _ in range(classes):
        chosen = [client for client in range(clients) if quota[client] > 0][:places]
        for client in chosen:
            quota[client] -= 1
        takers.append(chosen)
    if orphans := sum(not chosen for chosen in takers):
        raise UserError(
            f"{clients} clients with {per_client} of {classes} classes each leave {orphans} classes without a client.",
            f"Make clients x classes per client a multiple of {classes}.",
        )
    return takers


def _uneven(k: int, mean: float, floor: float, number: int, stream: np.random.RandomState) -> NDArray[np.int64]:
    low, high = int(max(mean / 10, floor)), int(mean)
    if number and low >= high:
        raise UserError(
            f"Class {k} has {mean:.4g} samples per client that holds it: too few for uneven sizes of at least {low}.",
            "Use fewer clients, fewer classes per client, or balanced (equal) shares.",
        )
    return stream.randint(low, high, number) if number else np.zeros(0, dtype=np.int64)
