"""Rows of some clients among those of all. Where some are all, nothing is copied: matrices of models are large."""

from __future__ import annotations

from torch import Tensor


def take(everyone: Tensor, S: Tensor) -> Tensor:
    """The rows of S, ascending positions: [c, ...]."""
    return everyone if len(S) == len(everyone) else everyone[S]


def put(everyone: Tensor, S: Tensor, rows: Tensor) -> Tensor:
    """Everyone's rows [N, ...] with new ones for S, ascending positions."""
    return rows if len(S) == len(everyone) else everyone.index_copy(0, S, rows)
