"""The toy task F2 (methods.md 0.9), for methods that look at features: two linear layers and three classes."""

from __future__ import annotations

from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from pflbench.contract import small
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.engine.samples import Samples
from pflbench.methods.base import Method
from pflbench.run import round as one_round
from pflbench.run.round import HEADLINE
from pflbench.spec import TrainSpec


class TwoLayers(nn.Module):
    """z = Ax, o = Wz + b: A [3, 2], W [3, 3], b [3]; with normalise BatchNorm between them."""

    head = "output"
    blocks = (("output",), ("base",))

    def __init__(self, normalise: bool = False) -> None:
        super().__init__()
        base = nn.Linear(2, 3, bias=False)
        self.base = nn.Sequential(base, nn.BatchNorm1d(3)) if normalise else base
        self.output = nn.Linear(3, 3)
        self.double()
        exact = partial(torch.tensor, dtype=torch.float64)
        base.weight.data = exact([[1, 0.5], [-0.5, 1], [0.25, -0.75]])
        self.output.weight.data = exact([[0.5, -0.3, 0.2], [0.2, 0.4, -0.1], [-0.6, 0.1, 0.3]])
        self.output.bias.data = exact([0.1, -0.2, 0.05])

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.base(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        o: Tensor = self.output(self.features(x))
        return o


def f2(name: str = "loop", method: Method | None = None, *, normalise: bool = False) -> Federation:
    """Task F2, with the method's model: two full-batch steps a round; each client is tested on its training samples."""
    module: nn.Module = TwoLayers(normalise)
    flat = Flat(module if method is None else method.model(module).double())
    x = np.array([[1, 0], [1, 1], [2, 0.5], [0, 1], [-0.5, 1.5], [-1, 1], [0.5, -1], [0, -1.5]])
    y = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    samples = Samples(x, y, torch.float64, torch.device("cpu"))
    train = TrainSpec(rounds=4, local_epochs=2, batch_size=5, lr=0.1, dtype="float64")
    indices = [np.arange(5), np.arange(5, 8)]
    return Federation(flat, small.executor(name, flat, samples), train, indices, indices, seed=0, labels=y)


def fill(start: int, *parameters: Tensor) -> None:
    """Fills further parts of a model on F2, one after another, with f(n, start) of methods.md 0.9."""
    for parameter in parameters:
        k = torch.arange(start, start + parameter.numel(), dtype=torch.float64)
        parameter.data = (((7 * k) % 11 - 5) / 10).view(parameter.shape)
        start += parameter.numel()


def losses_at_e1(method: Method, fed: Federation, count: int) -> list[list[float]]:
    """E1 of each round on F2: the clients' mean cross-entropies."""
    found = [scores[HEADLINE] for _, scores, _ in islice(one_round.rounds(method, fed), count)]
    return [(scores.loss / scores.total).tolist() for scores in found]
