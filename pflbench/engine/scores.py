"""What a test of clients' models gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Test results of some clients: correct [c], total [c], summed cross-entropy [c]."""

    clients: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    loss: np.ndarray

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
