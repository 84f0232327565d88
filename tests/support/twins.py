"""A method as a plain PyTorch program, client by client: nn.Modules, torch.optim.SGD, no rows, no executors; float64."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from pflbench.contract.small import federation

ROUNDS = 3


def near(actual: torch.Tensor, expected: object, tolerance: float = 1e-8) -> None:
    """Equal to numbers worked out by hand."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


class Twin:
    """N clients, each with a module of its own."""

    def __init__(self, fed):
        self.fed = fed
        self.n = [len(i) for i in fed.train_indices]
        self.samples = fed.executor.samples if hasattr(fed.executor, "samples") else None
        self.server = self.fresh()
        self.clients = [self.fresh() for _ in range(fed.size)]

    def fresh(self) -> nn.Module:
        return copy.deepcopy(self.fed.flat.module).double()

    def data(self, index):
        return self.samples.batch(torch.from_numpy(index))

    def sgd(self, module, plan, i, anchor=None, strength=0.0, optimiser=None):
        """Plain SGD along the plan, or another optimiser; with an anchor, its squared distance is part of the loss."""
        optimiser = optimiser or torch.optim.SGD(module.parameters(), lr=self.fed.protocol.lr)
        module.train()
        for index in plan.batches(i):
            x, y = self.data(index)
            optimiser.zero_grad()
            loss = F.cross_entropy(module(x), y)
            if anchor is not None:
                pairs = zip(module.parameters(), anchor.parameters(), strict=True)
                loss = loss + strength / 2 * sum((p - a.detach()).pow(2).sum() for p, a in pairs)
            loss.backward()
            optimiser.step()

    def load(self, module, source):
        """Copies parameters only: BatchNorm's buffers stay where they are."""
        with torch.no_grad():
            for p, q in zip(module.parameters(), source.parameters(), strict=True):
                p.copy_(q)

    def average(self, modules, S):
        weights = np.array([self.n[i] for i in S]) / sum(self.n[i] for i in S)
        with torch.no_grad():
            for p, *parts in zip(self.server.parameters(), *(m.parameters() for m in modules), strict=True):
                p.copy_(sum(w * q for w, q in zip(weights, parts, strict=True)))


def rows(modules) -> torch.Tensor:
    return torch.stack([parameters_to_vector(m.parameters()).detach() for m in modules])


def setup(model, engine, **settings):
    settings = {"n": (13, 8, 11, 14), "local_epochs": 2, "join_ratio": 0.75, **settings}
    fed = federation(model, engine, **settings)
    twin = Twin(fed)
    if twin.samples is None:
        twin.samples = federation(model, "batched", **settings).executor.samples
    return fed, twin


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
