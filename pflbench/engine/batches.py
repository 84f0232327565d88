"""Which samples each client visits, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """For each client of a cohort the sample indices of all its steps in a row, and the size of each step's batch."""

    order: tuple[np.ndarray, ...]
    sizes: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.order)

    @classmethod
    def through(cls, orders: Iterable[np.ndarray], size: int) -> Plan:
        """Each client's given samples once, in that order, in batches of a size."""
        order = tuple(orders)
        return cls(order, tuple(batch_sizes(len(mine), size, "never", 1) for mine in order))

    @classmethod
    def joined(cls, plans: Sequence[Plan]) -> Plan:
        """One plan for the clients of several plans, in their order."""
        return cls(tuple(order for plan in plans for order in plan.order), tuple(s for plan in plans for s in plan.sizes))

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

    def epochs(self, count: int) -> Iterator[Plan]:
        """The plan of `count` equal epochs, one by one."""
        orders, sizes = ([np.split(mine, count) for mine in part] if count else () for part in (self.order, self.sizes))
        for k in range(count):
            yield Plan(tuple(mine[k] for mine in orders), tuple(mine[k] for mine in sizes))

    def positions(self) -> Plan:
        """The same batches of a dataset whose samples are stored in the order in which this plan visits them."""
        ends = np.cumsum([len(order) for order in self.order])
        return Plan(tuple(np.arange(end - len(order), end) for end, order in zip(ends, self.order, strict=True)), self.sizes)

    def shifted(self, by: int) -> Plan:
        """The same batches with an offset added to all indices."""
        return Plan(tuple(order + by for order in self.order), self.sizes)

    def once(self, batch_size: int) -> tuple[Plan, Plan]:
        """A plan with every sample of each client once, and this plan's batches as positions in that one."""
        unique = [np.unique(order, return_inverse=True) for order in self.order]
        starts = np.cumsum([0, *(len(samples) for samples, _ in unique)])
        positions = tuple(start + at for start, (_, at) in zip(starts, unique, strict=False))
        return Plan.through((samples for samples, _ in unique), batch_size), Plan(positions, self.sizes)

    def padded(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices [C, steps, batch], padded with the client's own first sample, and sizes [C, steps], padded with 0."""
        width = max((int(s.max(initial=0)) for s in self.sizes), default=0)
        length = int(self.steps().max(initial=0))
        index = np.zeros((len(self), length, width), dtype=np.int64)
        sizes = np.zeros((len(self), length), dtype=np.int64)
        for i, (order, size) in enumerate(zip(self.order, self.sizes, strict=True)):
            sizes[i, : len(size)] = size
            index[i] = order[0] if len(order) else 0
            within = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
            index[i, np.repeat(np.arange(len(size)), size), within] = order
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
