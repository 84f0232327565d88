"""FedAvg and FedALA as one writes them in plain PyTorch: the yardstick of round_time.py. Nothing of pflbench is used.

One client after another, a DataLoader each, torch.optim.SGD, intra-op threads at their default, a module of its own for every
client, the CNN with its layers in the order of methods.md 4.1. FedALA's weight learning (methods.md 1.14) has the structure of
its authors' published module: a temporary copy of the model, its lower layers frozen, autograd through the copy for every batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

BATCH = 10


def cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """Of images [channels, size, size]."""
    pooled = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * pooled**2, 512), nn.ReLU(inplace=True)),
        nn.Linear(512, classes),
    )


class FedAvg:
    """Trains `model` on the clients' data; a round trains, aggregates and tests what each client would use next."""

    def __init__(self, model: nn.Module, train: Sequence[TensorDataset], test: Sequence[TensorDataset], lr: float) -> None:
        self.server, self.train, self.test, self.lr = model, train, test, lr
        self.clients = [copy.deepcopy(model) for _ in train]
        total = sum(map(len, train))
        self.weights = [len(data) / total for data in train]

    def round(self) -> float:
        """Accuracy, pooled over the clients' test data."""
        for model, data in zip(self.clients, self.train, strict=True):
            self.fit(model, data)
        self.aggregate()
        for i, model in enumerate(self.clients):
            self.initialise(i, model)
        correct = sum(correct_of(model, data) for model, data in zip(self.clients, self.test, strict=True))
        return correct / sum(map(len, self.test))

    def fit(self, model: nn.Module, data: TensorDataset) -> None:
        """One local epoch."""
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=self.lr)
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=len(data) >= BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()

    @torch.no_grad()
    def aggregate(self) -> None:
        for name, parameter in self.server.named_parameters():
            parameter.copy_(sum(w * c.get_parameter(name) for w, c in zip(self.weights, self.clients, strict=True)))

    def initialise(self, i: int, model: nn.Module) -> None:
        """Client i's model, from which it trains next."""
        model.load_state_dict(self.server.state_dict())


class FedALA(FedAvg):
    """With the paper's weight rate 1 and s = 80 %, weights of the top block alone (p = 1), one epoch of them in every round."""

    RATE, PERCENT, TENSORS = 1.0, 80, 2

    def __init__(self, model: nn.Module, train: Sequence[TensorDataset], test: Sequence[TensorDataset], lr: float) -> None:
        super().__init__(model, train, test, lr)
        self.learned = [[torch.ones_like(p) for p in _upper(model)] for _ in train]

    def initialise(self, i: int, model: nn.Module) -> None:
        local = [p.detach().clone() for p in _upper(model)]
        model.load_state_dict(self.server.state_dict())
        received, mixed = [p.detach() for p in _upper(self.server)], copy.deepcopy(model)
        for parameter in list(mixed.parameters())[: -self.TENSORS]:
            parameter.requires_grad_(False)
        blend(_upper(mixed), local, received, self.learned[i])
        for x, y in DataLoader(self.subset(self.train[i]), batch_size=BATCH):
            gradients = torch.autograd.grad(F.cross_entropy(mixed(x), y), _upper(mixed))
            for W, G, own, new in zip(self.learned[i], gradients, local, received, strict=True):
                W.copy_(torch.clamp(W - self.RATE * G * (new - own), 0, 1))
            blend(_upper(mixed), local, received, self.learned[i])
        blend(_upper(model), local, received, self.learned[i])

    def subset(self, data: TensorDataset) -> Subset[tuple[Tensor, ...]]:
        """In one order for the whole round: weight learning does not shuffle."""
        chosen = np.random.default_rng().permutation(len(data))[: max(1, int(self.PERCENT / 100 * len(data)))]
        return Subset(data, chosen.tolist())


def _upper(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())[-FedALA.TENSORS :]


@torch.no_grad()
def blend(into: list[nn.Parameter], local: list[Tensor], received: list[Tensor], weights: list[Tensor]) -> None:
    """Equation 4: local + (received - local) * W."""
    for parameter, own, new, W in zip(into, local, received, weights, strict=True):
        parameter.copy_(own + (new - own) * W)


@torch.no_grad()
def correct_of(model: nn.Module, data: TensorDataset) -> int:
    model.eval()
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(data, batch_size=BATCH))


METHODS = {"fedavg": FedAvg, "fedala": FedALA}
