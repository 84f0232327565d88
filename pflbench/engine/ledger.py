"""What a round cost and showed, written down where it happens: communication, training loss, observations, notes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

COUNTERS = ("params_up", "params_down", "scalars_up", "scalars_down")


class Traffic:
    """What went over the network in a round, by client [N]; parameters and other scalars are counted apart (methods.md 1.18)."""

    def __init__(self, clients: int) -> None:
        self.params_up, self.params_down, self.scalars_up, self.scalars_down = np.zeros((len(COUNTERS), clients), dtype=np.int64)

    def by_client(self) -> npt.NDArray[np.int64]:
        """[N, 4], in the order of COUNTERS."""
        return np.stack([getattr(self, name) for name in COUNTERS], axis=1)


@dataclass
class Ledger:
    """Counters of one round."""

    traffic: Traffic
    train_loss: dict[str, float] = field(default_factory=dict)  # by model slot
    artifacts: dict[str, np.ndarray] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def follow(self, client: int, S: Tensor, before: Tensor, after: Tensor) -> None:
        """Keeps a client's model before and after local training, [2, P], if it takes part; of several parts, the whole way."""
        for i in S.eq(client).nonzero().flatten().tolist():
            name = f"trajectory_{client}"
            start = torch.from_numpy(self.artifacts[name])[0] if name in self.artifacts else before[i].cpu()
            self.observe(name, torch.stack([start, after[i].cpu()]))

    def note(self, name: str, text: str) -> None:
        """Tells whoever runs this what the numbers alone do not say. A run says the first note of each name, and keeps it."""
        self.notes.setdefault(name, text)

    def observe(self, name: str, value: Tensor | np.ndarray) -> None:
        """Keeps a named array for the database."""
        self.artifacts[name] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
