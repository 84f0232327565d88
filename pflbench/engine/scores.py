"""What a test of clients' models gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Test results of some clients: correct [c], total [c], summed cross-entropy [c]."""

    clients: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray

    @classmethod
    def joined(cls, groups: Sequence[Scores]) -> Scores:
        """Of several groups of clients, ascending."""
        if len(groups) == 1:
            return groups[0]
        order = np.argsort(np.concatenate([group.clients for group in groups]))
        return cls(*(np.concatenate(values)[order] for values in zip(*(vars(group).values() for group in groups), strict=True)))

    def __bool__(self) -> bool:
        """Whether there was anything to test on."""
        return len(self.clients) > 0

    @property
    def accuracy(self) -> float:
        """Pooled over the clients: sum of correct / sum of total (methods.md 2.1)."""
        return float(self.correct.sum() / self.total.sum())

    @property
    def mean_loss(self) -> float:
        return float(self.loss.sum() / self.total.sum())
