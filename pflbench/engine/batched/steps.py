"""The steps of a chunk of clients as blocks: clients that make a step together, with equally many samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.batches import Plan


@dataclass(frozen=True)
class Block:
    """A step of some clients. samples and weights have rows for all clients; rows of others than `clients` are unused.

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
