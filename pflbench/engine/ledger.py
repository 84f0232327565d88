"""What a round cost and showed, written down where it happens: communication, training loss, observations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass
class Ledger:
    """Counters of one round; parameters and other scalars are counted apart (methods.md 1.18)."""

    params_up: int = 0
    params_down: int = 0
    scalars_up: int = 0
    scalars_down: int = 0
    train_loss: dict[str, float] = field(default_factory=dict)  # by model slot
    artifacts: dict[str, np.ndarray] = field(default_factory=dict)

    def observe(self, name: str, value: Tensor | np.ndarray) -> None:
        """Keeps a named array for the database."""
        self.artifacts[name] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
