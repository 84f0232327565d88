"""A task that a hand can check, Q2 (methods.md 0.4): two clients, w in R^2, f_i(w) = |w - c_i|^2 / 2.

Each epoch is one full-batch gradient step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pflbench.contract import small
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.requests import Loss
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run.round import CommunicationRound
from pflbench.spec import TrainSpec

EXECUTORS = ("loop", "batched")


class Component(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))


class Quadratic(nn.Module):
    """Output w - x. Index 0 is the lower block, index 1 the upper one."""

    head = "upper"
    blocks = (("upper",), ("lower",))

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = Component(), Component()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.lower.w, self.upper.w]) - x


def half_square(output: Tensor, labels: Tensor) -> Tensor:
    return (output.square().sum(-1) / 2).mean()


def by_hand(
    module: nn.Module, x: np.ndarray, n: Sequence[int], name: str = "loop", loss: Loss = half_square, **train: Any
) -> Federation:
    """A federation whose clients train on n samples each, in their order, and are tested with them. train: the protocol."""
    flat = Flat(module.double())
    y = np.zeros(len(x), dtype=np.int64)
    samples = Samples(x, y, torch.float64, torch.device("cpu"))
    protocol = TrainSpec(**{"rounds": 4, "batch_size": 30, "lr": 0.1, "dtype": "float64", **train})
    parts = np.split(np.arange(len(x)), np.cumsum(n)[:-1])
    return Federation(flat, small.executor(name, flat, samples, loss=loss), protocol, parts, parts, seed=0, labels=y)


def q2(
    name: str = "loop",
    *,
    centres: tuple[tuple[float, float], ...] = ((1.0, 0.0), (0.0, 2.0)),
    n: tuple[int, ...] = (30, 10),
    lr: float = 0.1,
    epochs: int = 1,
) -> Federation:
    """The federation, w = 0 at first: a step takes client i from w to w + lr (c_i - w). name: one of EXECUTORS."""
    return by_hand(Quadratic(), np.repeat(centres, n, axis=0), n, name, lr=lr, local_epochs=epochs)


def rounds(method: Method, fed: Federation, count: int) -> list[tuple[Any, Any]]:
    """States after receive and after update of each round: [(received, updated), ...]."""
    state, seen = method.init(fed), []
    for t in range(1, count + 1):
        now = CommunicationRound(method, fed, t)
        received = now.receive(state)
        state = now.update(received)
        seen.append((received, state))
    return seen
