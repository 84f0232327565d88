"""Which samples each client visits, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """For each client of a cohort the sample indices of all its steps in a row, and the size of each step's batch."""

    order: tuple[np.ndarray, ...]
    sizes: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.order)

    def take(self, clients: Sequence[int]) -> Plan:
        """The plan of some of the cohort's clients, by position."""
        return Plan(tuple(self.order[i] for i in clients), tuple(self.sizes[i] for i in clients))

    def steps(self) -> np.ndarray:
        """Steps per client, [C]."""
        return np.array([len(s) for s in self.sizes], dtype=np.int64)

    def batches(self, client: int) -> Iterator[np.ndarray]:
        """The index arrays of one client's steps."""
        start = 0
        for size in self.sizes[client]:
            yield self.order[client][start : start + size]
            start += size

    def positions(self) -> Plan:
        """The same batches, numbered through: of samples that lie in the order in which the plan visits them."""
        ends = np.cumsum([len(order) for order in self.order])
        return Plan(tuple(np.arange(end - len(order), end) for end, order in zip(ends, self.order, strict=True)), self.sizes)

    def once(self, batch_size: int) -> tuple[Plan, Plan]:
        """Every sample of each client once, and this plan's batches as positions among those."""
        found = [np.unique(order, return_inverse=True) for order in self.order]
        starts = np.cumsum([0, *(len(samples) for samples, _ in found)])
        sizes = (batch_sizes(len(samples), batch_size, "never", 1) for samples, _ in found)
        positions = tuple(start + at for start, (_, at) in zip(starts, found, strict=False))
        return Plan(tuple(samples for samples, _ in found), tuple(sizes)), Plan(positions, self.sizes)

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices [C, steps, batch] (0 where there is nothing) and sizes [C, steps] (0 where a client has finished)."""
        width = max((int(s.max(initial=0)) for s in self.sizes), default=0)
        length = int(self.steps().max(initial=0))
        index = np.zeros((len(self), length, width), dtype=np.int64)
        sizes = np.zeros((len(self), length), dtype=np.int64)
        for i in range(len(self)):
            sizes[i, : len(self.sizes[i])] = self.sizes[i]
            for j, batch in enumerate(self.batches(i)):
                index[i, j, : len(batch)] = batch
        return index, sizes


def batch_sizes(n: int, batch_size: int, drop_last: str, smallest: int) -> np.ndarray:
    """Batch sizes of one pass over n samples (methods.md 0.5).

    drop_last: "auto" drops the last partial batch only if there is a full one, "always", "never".
    smallest: leave out a batch of fewer samples, such as one of a single sample, which BatchNorm cannot train on.
    """
    full, tail = divmod(n, batch_size)
    sizes = [batch_size] * full
    keep_tail = drop_last == "never" or (drop_last == "auto" and full == 0)
    if tail and keep_tail:
        sizes.append(tail)
    return np.array([s for s in sizes if s >= smallest], dtype=np.int64)


def passes(
    samples: np.ndarray,
    epochs: int,
    batch_size: int,
    drop_last: str,
    smallest: int,
    rng: np.random.Generator | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Order and batch sizes of `epochs` passes over a client's samples, reshuffled for each pass if `rng` is given."""
    sizes = batch_sizes(len(samples), batch_size, drop_last, smallest)
    kept = int(sizes.sum())
    orders = [(samples if rng is None else rng.permutation(samples))[:kept] for _ in range(epochs)]
    return np.concatenate(orders) if orders else samples[:0], np.tile(sizes, epochs)
