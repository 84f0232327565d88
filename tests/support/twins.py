"""A method as a plain PyTorch program, client by client: nn.Modules, torch.optim.SGD, no rows, no executors; float64."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from pflbench.contract.small import federation
from pflbench.methods.attention import mixed

ROUNDS = 3


def near(actual: torch.Tensor, expected: object, tolerance: float = 1e-8) -> None:
    """Equal to numbers worked out by hand."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


class Twin:
    """N clients, each with a module of its own."""

    def __init__(self, fed):
        self.fed = fed
        self.n = [len(i) for i in fed.train_indices]
        self.samples = fed.executor.samples
        self.server = self.fresh()
        self.clients = [self.fresh() for _ in range(fed.size)]

    def rounds(self, count):
        """The federation in each round, and the round's cohort."""
        for t in range(1, count + 1):
            yield self.fed.at(t), self.fed.cohort(t)

    def fresh(self) -> nn.Module:
        return copy.deepcopy(self.fed.flat.module).double()

    def data(self, index):
        return self.samples.batch(torch.from_numpy(index))

    def sgd(self, module, plan, i, anchor=None, strength=0.0, optimiser=None):
        """Plain SGD along the plan, or another optimiser; with an anchor, its squared distance is part of the loss."""
        self.descend(module, plan.batches(i), anchor, strength, optimiser)

    def descend(self, module, batches, anchor=None, strength=0.0, optimiser=None):
        """The same on given batches; returns the mean of their losses."""
        optimiser, losses = optimiser or torch.optim.SGD(module.parameters(), lr=self.fed.protocol.lr), []
        module.train()
        for index in batches:
            x, y = self.data(index)
            optimiser.zero_grad()
            loss = F.cross_entropy(module(x), y)
            if anchor is not None:
                pairs = zip(module.parameters(), anchor.parameters(), strict=True)
                loss = loss + strength / 2 * sum((p - a.detach()).pow(2).sum() for p, a in pairs)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return np.mean(losses) if losses else None

    def load(self, module, source):
        """Copies parameters only: BatchNorm's buffers stay where they are."""
        with torch.no_grad():
            for p, q in zip(module.parameters(), source.parameters(), strict=True):
                p.copy_(q)

    def average(self, S, modules=None):
        """The server's model becomes the mean of the cohort's, or of the given ones, by sample count."""
        modules = modules or [self.clients[i] for i in S.tolist()]
        weights = np.array([self.n[i] for i in S.tolist()]) / sum(self.n[i] for i in S.tolist())
        with torch.no_grad():
            for p, *parts in zip(self.server.parameters(), *(m.parameters() for m in modules), strict=True):
                p.copy_(sum(w * q for w, q in zip(weights, parts, strict=True)))


def module_of(fed, row) -> nn.Module:
    """The federation's module with the parameters of a row."""
    module = copy.deepcopy(fed.flat.module).double()
    for name, value in fed.flat.views(row).items():
        module.get_parameter(name).data.copy_(value)
    return module


def perturbed(fed) -> torch.Tensor:
    """A model of each client's own."""
    return fed.everyone(fed.initial()) + 0.1 * torch.arange(fed.size).to(fed.dtype).unsqueeze(1)


def vector(module) -> torch.Tensor:
    return parameters_to_vector(module.parameters()).detach().clone()


def rows(modules) -> torch.Tensor:
    return torch.stack([vector(module) for module in modules])


def buffers(modules) -> torch.Tensor:
    """BatchNorm's, where there are any."""
    return torch.stack([torch.cat([torch.empty(0).double(), *(b.double().reshape(-1) for b in m.buffers())]) for m in modules])


def clouds(method, w):
    """The cloud models of FedAMP and HeurFedAMP."""
    return mixed(w, w, method.attention(w, 1))


def setup(model, engine, **settings):
    fed = federation(model, engine, **{"n": (13, 8, 11, 14), "local_epochs": 2, "join_ratio": 0.75, **settings})
    return fed, Twin(fed)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
