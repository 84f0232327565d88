"""Each method against a plain per-client PyTorch program: nn.Modules, torch.optim.SGD, no rows, no executors; float64.

The twins take the batches from the federation, as the only thing: which samples a client sees is not what is tested here.
"""

import copy

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import ROUNDS, buffers, close, rows, setup, vector
from torch.nn import functional as F

from pflbench.contract.small import federation, train
from pflbench.methods.ditto import Ditto
from pflbench.methods.fedala import FedALA
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.fedprox import FedProx
from pflbench.methods.local import Local

MODELS = ("mlp", "batchnorm")


@engines
@pytest.mark.parametrize("model", [*MODELS, "fasttext"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedavg_and_fedprox(model, engine, mu):
    fed, twin = setup(model, engine)
    state = train(FedProx(mu=mu) if mu else FedAvg(), fed, ROUNDS)
    for now, S in twin.rounds(ROUNDS):
        plan = now.batches(S)
        for i, c in enumerate(S.tolist()):
            twin.load(twin.clients[c], twin.server)
            twin.sgd(twin.clients[c], plan, i, twin.server if mu else None, mu)
        twin.average(S)
    close(state.w, vector(twin.server))
    close(fed.buffers_of("model"), buffers(twin.clients))


@engines
@pytest.mark.parametrize("model", MODELS)
def test_local(model, engine):
    fed, twin = setup(model, engine)
    state = train(Local(), fed, ROUNDS)
    for now, S in twin.rounds(ROUNDS):
        for i, c in enumerate(S.tolist()):
            twin.sgd(twin.clients[c], now.batches(S), i)
    close(state.theta, rows(twin.clients))


@engines
@pytest.mark.parametrize("model", MODELS)
def test_ditto(model, engine):
    fed, twin = setup(model, engine)
    personal = [twin.fresh() for _ in twin.clients]
    state = train(Ditto(lam=0.4, personal_epochs=3), fed, ROUNDS)
    for now, S in twin.rounds(ROUNDS):
        plans = now.batches(S, 3, purpose="batches/personal"), now.batches(S)
        for i, c in enumerate(S.tolist()):
            twin.sgd(personal[c], plans[0], i, twin.server, 0.4)
            twin.load(twin.clients[c], twin.server)
            twin.sgd(twin.clients[c], plans[1], i)
        twin.average(S)
    close(state.v, rows(personal))
    close(state.w, vector(twin.server))


class Ala:
    """Weight learning on lists of parameter tensors, written from equations 2-7 of the paper for one client."""

    def __init__(self, module, tensors, eta, threshold, cap):
        self.tensors, self.eta, self.threshold, self.cap = tensors, eta, threshold, cap
        self.W = [torch.ones_like(p) for p in list(module.parameters())[-tensors:]]
        self.started = False

    def __call__(self, received, local, batches):
        """Changes `local` in place into the initialised model; returns the epochs."""
        pairs = zip(received.parameters(), local.parameters(), strict=True)
        if all(torch.equal(a, b) for a, b in pairs):
            return 0
        top_received = [p.detach() for p in list(received.parameters())[-self.tensors :]]
        top_local = [p.detach().clone() for p in list(local.parameters())[-self.tensors :]]
        mixed = copy.deepcopy(local)
        with torch.no_grad():
            for p, q in zip(list(mixed.parameters())[: -self.tensors], list(received.parameters())[: -self.tensors], strict=True):
                p.copy_(q)
        self.blend(mixed, top_received, top_local)
        mixed.train()
        losses = []
        while True:
            for x, y in batches:
                loss = F.cross_entropy(mixed(x), y)
                top = list(mixed.parameters())[-self.tensors :]
                grads = torch.autograd.grad(loss, top)
                for W, g, r, own in zip(self.W, grads, top_received, top_local, strict=True):
                    W.copy_(torch.clamp(W - self.eta * g * (r - own), 0, 1))
                self.blend(mixed, top_received, top_local)
            losses.append(loss.item())
            settled = len(losses) > 10 and np.std(losses[-10:]) < self.threshold
            if self.started or settled or len(losses) >= self.cap:
                break
        self.started = True
        with torch.no_grad():
            for p, q in zip(local.parameters(), mixed.parameters(), strict=True):
                p.copy_(q)
        return len(losses)

    def blend(self, mixed, received, local):
        with torch.no_grad():
            for p, W, r, own in zip(list(mixed.parameters())[-self.tensors :], self.W, received, local, strict=True):
                p.copy_(own + (r - own) * W)


@engines
@pytest.mark.parametrize(("model", "p", "tensors"), [("mlp", 1, 2), ("mlp", 2, 4), ("batchnorm", 1, 2), ("batchnorm", 2, 6)])
@pytest.mark.parametrize(("drop_last", "subset_of"), [(False, "random"), (True, "slice")])
def test_fedala(model, p, tensors, engine, drop_last, subset_of):
    fed, twin = setup(model, engine)
    method = FedALA(p=p, s=60, eta=0.8, threshold=0.005, max_init_epochs=25, drop_last=drop_last, subset=subset_of)
    alas = [Ala(m, tensors, 0.8, 0.005, 25) for m in twin.clients]
    trained = [twin.fresh() for _ in twin.clients]
    state, epochs = method.receive(fed.at(1), method.init(fed), fed.cohort(1)), {}
    for now, S in twin.rounds(ROUNDS):
        if now.t > 1:
            state = method.receive(now, state, S)
            seen = now.ledger.artifacts.get("ala_init_epochs", np.zeros(fed.size, dtype=int))
        state = method.update(now, state, S)
        subset = now.subset(S, 60, contiguous=subset_of == "slice")
        subset_plan = now.batches(S, 1, samples=subset, shuffle=False, drop_last="auto" if drop_last else "never")
        for i, c in enumerate(S.tolist()):
            if now.t == 1:
                twin.load(trained[c], twin.server)
            else:
                first = not alas[c].started
                count = alas[c](twin.server, trained[c], [twin.data(index) for index in subset_plan.batches(i)])
                if first:
                    assert seen[c] == count
                    epochs[c] = count
            twin.sgd(trained[c], now.batches(S), i)
        twin.average(S, [trained[c] for c in S.tolist()])
    close(state.theta, rows(trained))
    close(state.w, vector(twin.server))
    assert min(epochs.values()) >= 11


def test_the_twin_task_is_not_trivial():
    """The twins would agree on anything if training moved nothing, or moved every client alike."""
    fed = federation("mlp", "loop")
    theta = train(Local(), fed, ROUNDS).theta
    assert (theta - fed.initial()).norm(dim=1).min() > 0.1
    assert torch.pdist(theta).min() > 0.1
