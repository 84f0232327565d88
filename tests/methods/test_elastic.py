"""Elastic Aggregation (methods.md 1.16): the numbers of the specification, a twin in plain PyTorch, limits and edge cases."""

import numpy as np
import pytest
import torch
from support.cases import engines
from support.twins import buffers, close, setup, vector
from torch import nn

from pflbench.contract.small import federation, train
from pflbench.contract.toy import by_hand
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation
from pflbench.engine.requests import Scanned
from pflbench.methods.elastic import Elastic, ElasticState, elasticity, measure, squared_norm


class Scaling(nn.Module):
    """F(x) = (w_1 x, w_2 x), one layer."""

    head = "layer"
    blocks = (("layer",),)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[1.0], [-0.5]]))

    def forward(self, x):
        return self.layer(x)


def one_layer(engine, n=(30, 10)):
    return by_hand(Scaling(), np.arange(1.0, sum(n) + 1)[:, None], n, engine, batch_size=10)


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


@engines
@pytest.mark.parametrize(("batches", "expected"), [(1, [0.1, 0.05]), (2, [0.495, 0.2475])])
def test_sensitivity_numbers(engine, batches, expected):
    fed = one_layer(engine)
    S, theta = torch.tensor([0]), fed.initial()[None]
    with fed.inner_loop(S, Plan((np.arange(batches),), (np.ones(batches, dtype=np.int64),)), theta) as loop:
        carry, given = {"Omega": torch.zeros(1, 2).double()}, {"theta": theta, "mu": 0.95}
        scanned = fed.scan(measure, loop, carry=carry, given=given, objective=squared_norm)
    close(scanned.carry["Omega"], exact([expected]))


def test_server_numbers(monkeypatch):
    """What the clients would upload is given; everything after it is the method's."""
    fed = one_layer("loop").at(1)
    fed.observing = True
    of_clients = exact([[0.8, 1.2], [0.6, 0.8]]), exact([[0.4, 0.1], [0.8, 0.1]])
    zeros = torch.zeros(2)
    monkeypatch.setattr(Federation, "sgd", lambda *_, **__: of_clients[0])
    monkeypatch.setattr(Federation, "scan", lambda *_, **__: Scanned({"Omega": of_clients[1]}, zeros, zeros, zeros))
    method, begin = Elastic(tau=0.5, holdout=0.5), ElasticState(theta=exact([1, 1]))
    close(method.update(fed, begin, fed.cohort(1)).theta, exact([0.875, 1.13]))
    Omega = torch.from_numpy(fed.ledger.artifacts["sensitivities"])
    close(Omega, exact([0.5, 0.1]))
    close(elasticity(fed.flat, Omega, 0.5), exact([0.5, 1.3]))
    half = Elastic(tau=0.5, holdout=0.5, eta_s=0.5).update(fed, begin, fed.cohort(1))
    close(half.theta, exact([0.9375, 1.065]))


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_twin(model, engine):
    fed, twin = setup(model, engine)
    tau, mu, eta_s = 0.3, 0.8, 1.2
    method = Elastic(tau=tau, mu=mu, eta_s=eta_s, holdout=0.4)
    state = train(method, fed)
    for now, S in twin.rounds(3):
        B, D = zip(*(method.split(fed, c) for c in S.tolist()), strict=True)
        measuring = now.batches(S, 1, purpose="sensitivity", samples=B, drop_last="never")
        training, old = now.batches(S, samples=D), list(twin.server.parameters())
        total = sum(map(len, D))
        step, Omega = ([torch.zeros_like(q) for q in old] for _ in range(2))
        for i, c in enumerate(S.tolist()):
            probe = twin.fresh().train()
            twin.load(probe, twin.server)
            of_client = [torch.zeros_like(q) for q in old]
            for index in measuring.batches(i):
                x, _ = twin.data(index)
                norm = sum(out.norm() ** 2 for out in probe(x)) / len(x)
                for o, g in zip(of_client, torch.autograd.grad(norm, list(probe.parameters())), strict=True):
                    o.copy_(mu * o + (1 - mu) * g.abs())
            twin.load(twin.clients[c], twin.server)
            twin.sgd(twin.clients[c], training, i)
            with torch.no_grad():
                for d, o, was, now_is, part in zip(step, Omega, old, twin.clients[c].parameters(), of_client, strict=True):
                    d += len(D[i]) / total * (was - now_is)
                    o += len(D[i]) / total * part
        with torch.no_grad():
            for q, d, o in zip(old, step, Omega, strict=True):
                q -= eta_s * (1 + tau - o / o.max()) * d
    close(state.theta, vector(twin.server))
    close(fed.buffers_of("model"), buffers(twin.clients))


def test_the_split_is_fixed_and_leaves_something_to_train_on():
    fed, method = federation(n=(40, 40, 3, 1, 0)), Elastic()
    sizes = []
    for client in range(fed.size):
        B, D = method.split(fed.at(1), client)
        again = method.split(fed.at(7), client)
        assert np.array_equal(B, again[0])
        assert np.array_equal(D, again[1])
        assert np.array_equal(np.sort(np.append(B, D)), fed.train_indices[client])
        sizes.append((len(B), len(D)))
    assert sizes == [(12, 28), (12, 28), (0, 3), (0, 1), (0, 0)]
    first, second = (method.split(fed, client)[0] - fed.train_indices[client][0] for client in (0, 1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(method.split(federation(n=(40,), seed=1), 0)[0], method.split(fed, 0)[0])


def observed(fed, cohort):
    now = fed.at(1)
    now.observing = True
    Elastic().update(now, Elastic().init(fed), torch.tensor(cohort))
    return now.ledger.artifacts["sensitivities"]


@engines
def test_who_cannot_measure_is_left_out_of_the_mean(engine):
    fed = federation(engine=engine, n=(3, 20, 33))
    assert np.allclose(observed(fed, [0, 1]), observed(fed, [1]), rtol=0, atol=1e-12)
    assert np.allclose(observed(fed, [0, 1, 2]) * 38, observed(fed, [1]) * 14 + observed(fed, [2]) * 24, rtol=0, atol=1e-12)
    assert not observed(fed, [0]).any()
    close(
        Elastic().update(fed.at(1), Elastic().init(fed), torch.tensor([0])).theta,
        fed.sgd(fed.initial()[None], torch.tensor([0]))[0],
    )
