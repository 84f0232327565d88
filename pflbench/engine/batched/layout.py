"""Which samples of which clients are computed at once: `blocks` for the steps of training, `Layout` for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.batches import Plan
from pflbench.engine.requests import Evaluate


@dataclass(frozen=True)
class Block:
    """A step of some clients with equally many samples.

    samples and weights have rows for all clients; rows of others than `clients` are unused.
    weights: each sample's share of its client's mean loss, [C, width]; None where all count the same.
    """

    step: int
    clients: slice | Tensor  # rows of the chunk
    size: int
    samples: Tensor  # [C, width]
    weights: Tensor | None

    @property
    def index(self) -> Tensor:
        """The samples of the block's clients, [c, size]."""
        return self.samples[self.clients, : self.size]

    @property
    def first(self) -> int | None:
        """The number of clients, if they are the first of the chunk and have batches of the full width; else None."""
        mixed = not isinstance(self.clients, slice) or self.clients.start or self.size < self.samples.shape[1]
        return None if mixed else int(self.clients.stop)  # type: ignore[union-attr]


def blocks(plan: Plan, dtype: torch.dtype, device: torch.device, merged: bool) -> Iterator[Block]:
    """All steps in order. The plan's clients must be in descending order of their steps: those at work are then a prefix.

    merged: clients with smaller batches join the block, their batches padded with samples of weight 0. That is exact without
    BatchNorm, where samples see one another. Else a step has a block for each size of batch.
    """
    index, sizes = plan.padded()
    at = torch.from_numpy(index).to(device)
    if not merged or np.all((sizes == 0) | (sizes == index.shape[2])):
        yield from _by_size(at, sizes)
        return
    shares = (np.arange(index.shape[2]) < sizes[..., None]) / np.maximum(sizes, 1)[..., None]
    weights = torch.from_numpy(shares).to(device, dtype)
    for j, live in enumerate((sizes > 0).sum(axis=0).tolist()):
        yield Block(j, slice(0, live), index.shape[2], at[:, j], weights[:, j])


def _by_size(index: Tensor, sizes: np.ndarray) -> Iterator[Block]:
    for j in range(sizes.shape[1]):
        for size in np.unique(sizes[:, j][sizes[:, j] > 0])[::-1]:
            at = np.flatnonzero(sizes[:, j] == size)
            contiguous = at[-1] - at[0] + 1 == len(at)
            clients = slice(int(at[0]), int(at[-1]) + 1) if contiguous else torch.from_numpy(at).to(index.device)
            yield Block(j, clients, int(size), index[:, j], None)


@dataclass(frozen=True)
class Layout:
    """Several models that are tested at once: a row for each, with the samples of the clients that share it side by side.

    Rows are in descending order of their length and padded with index 0: any sample is harmless in evaluation mode.
    """

    models: np.ndarray  # [M], number of each row's model in the request
    lengths: np.ndarray  # [M], samples of each row
    samples: np.ndarray  # [M, longest], indices
    begins: np.ndarray  # [C], position of each client's first sample in the flattened rows
    counts: np.ndarray  # [C], number of each client's samples

    @classmethod
    def of(cls, request: Evaluate, clients: np.ndarray) -> Layout:
        orders = [request.plan.order[client] for client in clients]
        counts = np.array([len(order) for order in orders])
        models, row = np.unique(request.model_of[clients], return_inverse=True)
        lengths = np.bincount(row, weights=counts).astype(np.int64)
        descending = np.argsort(-lengths, kind="stable")
        row = np.argsort(descending)[row]
        models, lengths = models[descending], lengths[descending]
        samples = np.zeros((len(models), lengths[0]), dtype=np.int64)
        filled, begins = np.zeros_like(lengths), np.zeros_like(counts)
        for i, (r, order) in enumerate(zip(row, orders, strict=True)):
            samples[r, filled[r] : filled[r] + len(order)] = order
            begins[i] = r * lengths[0] + filled[r]
            filled[r] += len(order)
        return cls(models, lengths, samples, begins, counts)

    def parts(self, width: int) -> Iterator[tuple[int, slice]]:
        """Ranges of columns, and the number of rows that have samples there."""
        for start in range(0, self.samples.shape[1], width):
            yield int((self.lengths > start).sum()), slice(start, start + width)

    def by_sample(self, rows: Sequence[Tensor]) -> Tensor:
        """Each client's values for its samples, [samples, ...], at the places of the samples: [M, longest, ...]."""
        out = rows[0].new_zeros(self.samples.size, *rows[0].shape[1:])
        for begin, own in zip(self.begins.tolist(), rows, strict=True):
            out[begin : begin + len(own)] = own
        return out.view(*self.samples.shape, *out.shape[1:])

    def by_client(self, *values: Tensor) -> list[Tensor]:
        """Sums over each client's samples, [C], of values for every sample, [M, longest]."""
        begins, counts = torch.from_numpy(np.stack([self.begins, self.counts])[..., None]).to(values[0].device)
        within = torch.arange(int(self.counts.max()), device=values[0].device)
        mine = within < counts
        at = torch.where(mine, begins + within, 0)
        return [torch.where(mine, value.flatten()[at], 0).sum(dim=1) for value in values]
