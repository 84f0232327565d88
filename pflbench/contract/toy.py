"""Task Q2 of methods.md 0.4: two clients, w in R^2, f_i(w) = |w - c_i|^2 / 2, one full-batch gradient step per epoch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pflbench.contract import small
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
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


executor = partial(small.executor, loss=half_square)


def q2(
    name: str = "loop",
    *,
    centres: tuple[tuple[float, float], ...] = ((1.0, 0.0), (0.0, 2.0)),
    n: tuple[int, ...] = (30, 10),
    lr: float = 0.1,
    epochs: int = 1,
) -> Federation:
    """The federation, w = 0 at first: a step takes client i from w to w + lr (c_i - w). name: one of EXECUTORS."""
    flat = Flat(Quadratic().double())
    x = np.concatenate([np.tile(c, (k, 1)) for c, k in zip(centres, n, strict=True)])
    samples = Samples(x, np.zeros(len(x), dtype=np.int64), torch.float64, torch.device("cpu"))
    train = TrainSpec(rounds=4, local_epochs=epochs, batch_size=30, lr=lr, dtype="float64")
    owners = np.repeat(np.arange(len(n)), n)
    indices = [np.flatnonzero(owners == i) for i in range(len(n))]
    return Federation(flat, executor(name, flat, samples), train, indices, indices, seed=0)


def rounds(method: Method, fed: Federation, count: int) -> list[tuple[Any, Any]]:
    """States after receive and after update of each round: [(received, updated), ...]."""
    state, seen = method.init(fed), []
    for t in range(1, count + 1):
        now = CommunicationRound(method, fed, t)
        received = now.receive(state)
        state = now.update(received)
        seen.append((received, state))
    return seen
