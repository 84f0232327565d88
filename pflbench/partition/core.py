"""A partition, and what all schemes share: the least client and the split into train and test (methods.md 3.2, 3.5)."""

from __future__ import annotations

import hashlib
import math
import zlib
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
        train, test = (np.stack([np.bincount(labels[i], minlength=classes) for i in side]) for side in (self.train, self.test))
        return train, test


def least_samples(samples: int, clients: int) -> int:
    """The reference's smallest admissible client: int(min(B / 0.25, n_total / N / 2)) with B = 10 (methods.md 3.2)."""
    return int(min(10 / 0.25, samples / clients / 2))


def split(shares: Sequence[Indices], test_share: float, stream: np.random.RandomState) -> Partition:
    """Split each client's share at random into train and test (methods.md 3.5); not stratified.

    `shares` must be ordered by class, within a class as handed out: the published MNIST files depend on it.
    A client too small for the split has no training data and is never selected (0.5). Raises UserError if that holds for all.
    """
    train, test = [], []
    for share in shares:
        # Rounding first: (1 - 0.9) * 10 is 0.9999999999999998, and means 1.
        n_train = math.floor(round((1 - test_share) * len(share), 6))
        order = share[stream.permutation(len(share))]
        test.append(order[: len(share) - n_train])
        train.append(order[len(share) - n_train :])
    if not any(len(indices) for indices in train):
        raise UserError(
            f"A test share of {test_share:g} leaves no client anything to train on.",
            "Use fewer clients or a smaller test share.",
        )
    return Partition(tuple(train), tuple(test))


def set_aside(train: Sequence[Indices], share: float, seed: int) -> tuple[tuple[Indices, ...], tuple[Indices, ...]]:
    """Splits each client's training samples at random into training and validation, each in the order it had (methods.md 2.10).

    For validation are int(share * n) samples, at least one of a client with two or more. share: in [0, 1).
    """
    kept, aside = [], []
    for client, samples in enumerate(train):
        count = max(int(share * len(samples)), min(1, len(samples) - 1), 0)
        chosen = np.zeros(len(samples), dtype=bool)
        chosen[np.random.default_rng([seed, client, zlib.crc32(b"validation")]).permutation(len(samples))[:count]] = True
        kept.append(samples[~chosen])
        aside.append(samples[chosen])
    return tuple(kept), tuple(aside)


def without_last(whole: Partition, clients: int, samples: int | None = None) -> tuple[Partition, Partition]:
    """The partition without its last clients, and these, with the first `samples` of their training samples (methods.md 2.13).

    The order of a client's samples is random already (3.5).
    """
    rest, last = slice(None, -clients), slice(-clients, None)
    few = tuple(mine[:samples] for mine in whole.train[last])
    return Partition(whole.train[rest], whole.test[rest]), Partition(few, whole.test[last])


def _bytes(values: ArrayLike) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()
