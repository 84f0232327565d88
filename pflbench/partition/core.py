"""A partition, and what all schemes share: the least client and the split into train and test (methods.md 3.2, 3.5)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pflbench.errors import UserError

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples each client trains and tests on: int64 indices per client, in the order of methods.md 3.5."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]

    def hash(self, labels: ArrayLike) -> str:
        """SHA-256 (hex) of the index lists and the labels behind them: equal partitions of equal labels, equal hash."""
        labels = np.asarray(labels)
        digest = hashlib.sha256()
        for side in (self.train, self.test):
            digest.update(_bytes(len(side)))
            for indices in side:
                digest.update(_bytes(len(indices)) + _bytes(indices) + _bytes(labels[indices]))
        return digest.hexdigest()

    def counts(self, labels: ArrayLike, classes: int) -> tuple[Counts, Counts]:
        """Samples per client and class, (train, test), each int64 [clients, classes]."""
        labels = np.asarray(labels)
        return _counts(self.train, labels, classes), _counts(self.test, labels, classes)


def least_samples(samples: int, clients: int) -> int:
    """The reference's smallest admissible client: int(min(B / 0.25, n_total / N / 2)) with B = 10 (methods.md 3.2)."""
    return int(min(10 / 0.25, samples / clients / 2))


def split(shares: Sequence[Indices], test_share: float, stream: np.random.RandomState) -> Partition:
    """Split each client's share at random into train and test (methods.md 3.5); not stratified.

    `shares` must be ordered by class, within a class as handed out: the published MNIST files depend on it.
    Raises UserError if a client is left with nothing to train.
    """
    train, test = [], []
    for client, share in enumerate(shares):
        # Rounding first: (1 - 0.9) * 10 is 0.9999999999999998, and means 1.
        n_train = math.floor(round((1 - test_share) * len(share), 6))
        if n_train == 0:
            raise UserError(
                f"Client {client} has {len(share)} samples: a test share of {test_share:g} leaves it none to train on.",
                "Use fewer clients, a smaller test share or a more even partition.",
            )
        order = share[stream.permutation(len(share))]
        test.append(order[: len(share) - n_train])
        train.append(order[len(share) - n_train :])
    return Partition(tuple(train), tuple(test))


def _bytes(values: ArrayLike) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()


def _counts(side: tuple[Indices, ...], labels: NDArray[np.integer], classes: int) -> Counts:
    return np.stack([np.bincount(labels[indices], minlength=classes) for indices in side])
