"""How the samples of several clients are laid out so that several models are tested at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pflbench.engine.requests import Evaluate


@dataclass(frozen=True)
class Layout:
    """One row for each model, with the samples of the clients that share it side by side.

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

    def by_client(self, *values: Tensor) -> list[Tensor]:
        """Sums over each client's samples, [C], of values for every sample, [M, longest]."""
        begins, counts = torch.from_numpy(np.stack([self.begins, self.counts])[..., None]).to(values[0].device)
        within = torch.arange(int(self.counts.max()), device=values[0].device)
        mine = within < counts
        at = torch.where(mine, begins + within, 0)
        return [torch.where(mine, value.flatten()[at], 0).sum(dim=1) for value in values]
