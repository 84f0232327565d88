"""FedCP: the numbers of methods.md 1.30, its limiting cases, contexts and noise."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.cases import engines
from support.f2 import TwoLayers, f2, fill, losses_at_e1
from support.twins import close, near
from torch.nn import functional as F

from pflbench import methods
from pflbench.contract.small import federation, in_a_pack, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.engine import rng
from pflbench.methods import fedcp
from pflbench.methods.fedcp import FedCP, SplitFeatures, gumbel
from pflbench.methods.fedphp import mmd


class OnF2(FedCP):
    """Begins with the extra part of the specification's example."""

    def model(self, backbone):
        net = super().model(backbone)
        fill(0, *net.policy[0].parameters())
        return net


class OfOneValue:
    """A stream whose Gumbel noise is 0."""

    def random(self, shape):
        return np.full(shape, math.exp(-1))


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(fedcp, "gumbel", lambda stream, *size, **width: gumbel(OfOneValue(), *size, **width))


U = [0.2182178902, 0.4364357805, 0.8728715609]


@pytest.mark.parametrize("name", EXECUTORS)
def test_fedcp(name, no_noise):
    method = OnF2()
    e1 = torch.tensor(losses_at_e1(method, f2(name, method), 3), dtype=torch.float64)
    near(e1, [(0.5490674622, 0.8799766455), (0.5087019191, 0.7477129354), (0.4709904642, 0.6325825974)])
    fed = f2(name, method)
    (received, first), (received_2, second) = rounds(method, fed, 2)
    near(first.w[:6], [0.9975722757, 0.5524121714, -0.52338434, 1.0048978529, 0.2637858975, -0.7677383066])
    near(second.w[:6], [0.9966226842, 0.598469706, -0.5471370026, 1.0123386388, 0.2779677158, -0.7847350157])
    near(first.w[-12:-9], [0.509131739, -0.3000190472, 0.2033367253])
    near(first.w[-3:], [0.0914549873, -0.1898487128, 0.0483937255])
    for state in (received, received_2):
        near(state.theta[:, fed.flat.columns(["context"])], [U, U])


def test_shares_and_mmd(no_noise):
    method = OnF2()
    fed = f2("loop", method)
    (received, first), _ = rounds(method, fed, 2)
    expected = [([0.5, 0.5, 0.4358573238], 0.0002773819), ([0.5544828109, 0.5, 0.7681698435], 0.0013573608)]
    for i, (shares, distance) in enumerate(expected):
        x, _ = fed.executor.samples.batch(torch.from_numpy(fed.train_indices[i]))
        before, after = (loaded(method, fed, state.theta[i]) for state in (received, first))
        near(before.shares(before.features(x), None)[0, 0], shares)
        near(mmd(after.features(x), before.features(x), "fixed"), distance)


def loaded(method, fed, row):
    return set_to(method.model(TwoLayers()).double().requires_grad_(False), fed, row)


@torch.no_grad()
def test_another_head_and_noise():
    """Client 2 with a head of its own."""
    method = OnF2()
    fed = f2("loop", method)
    state, S = method.init(fed), torch.arange(2)
    head = loaded(method, fed, state.theta[1]).classifier
    fill(5, head.weight, head.bias)
    state.theta[1, fed.flat.head] = torch.cat([head.weight.flatten(), head.bias])
    row = method.receive(fed.at(1), state, S).theta[1]
    near(row[fed.flat.columns(["context"])], [-0.7844645406, 0.5883484054, -0.1961161351])
    net, noise = loaded(method, fed, row), torch.nn.Parameter(torch.empty(3, 2, 3))
    fill(3, noise)
    x, y = fed.executor.samples.batch(torch.from_numpy(fed.train_indices[1]))
    near(F.cross_entropy(net(x), y), 1.237718984)
    near(F.cross_entropy(net(x, noise), y), 1.2232386261)
    near(net.shares(net.features(x), noise)[0, 0], [0.5433735351, 0.5249791875, 0.7905411832])


@torch.no_grad()
def test_two_equal_heads_need_no_policy():
    """o = Wz + 2b."""
    net, x, noise = SplitFeatures(TwoLayers()).double(), torch.randn(4, 2).double(), torch.randn(4, 2, 3).double()
    net.context.value.fill_(1)
    close(net(x, noise), net.classifier(net.features(x)) + net.classifier.bias)


@engines
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_contexts_stay_those_of_the_first_head(engine, optimizer):
    """The gradient with respect to the logits sums to 0 over the classes, so the head's columns keep their sums."""
    method = FedCP()
    fed = federation(engine=engine, around=method.model, optimizer=optimizer)
    first, context = method.receive(fed.at(1), method.init(fed), torch.arange(fed.size)), fed.flat.columns(["context"])
    state = train(method, fed)
    assert not torch.equal(state.theta[0, fed.flat.head], state.theta[1, fed.flat.head])
    close(state.theta[:, context], first.theta[:, context], 1e-9)


def test_random_contexts_in_round_1():
    method = FedCP(context="random1")
    fed = federation(around=method.model)
    S, context = torch.arange(fed.size), fed.flat.columns(["context"])
    found = method.receive(fed.at(1), method.init(fed), S).theta[:, context]
    assert (found > 0).all()
    close(found.norm(dim=1), torch.ones(fed.size, dtype=found.dtype))
    assert not torch.equal(found[0], found[1])
    head = method.receive(fed.at(2), method.init(fed), S).theta[:, context]
    assert torch.equal(head, FedCP().receive(fed.at(1), method.init(fed), S).theta[:, context])
    assert methods.spec("fedcp", {}, "pfllib2025").hyperparameters["context"] == "random1"


@engines
def test_training_by_hand(engine):
    """Batches of 5, 5 and 3 samples: each step has noise of its own, a smaller batch the first of its step."""
    method = FedCP()
    fed = federation(engine=engine, around=method.model, n=(13, 4), drop_last="never").at(3)
    S, head, extra = torch.arange(2), fed.flat.head, fed.flat.columns(["policy", "global_head"])
    received = method.receive(fed, perturbed(fed, method), S)
    updated = method.update(fed, received, S)
    plan, uploads = fed.batches(S), []
    assert plan.steps().tolist() == [3, 1]
    for client in range(2):
        net, frozen = (set_to(copy.deepcopy(fed.flat.module).double(), fed, received.theta[client]) for _ in range(2))
        trained = [*net.net.parameters(), *net.policy.parameters()]
        sgd = torch.optim.SGD(trained, lr=fed.protocol.lr)
        stream = rng.stream(fed.seed, "training noise", 3, client)
        for index in plan.batches(client):
            x, y = fed.executor.samples.batch(torch.from_numpy(index))
            z, noise = net.features(x), gumbel(stream, 5, fed.device, width=net.width)
            away = mmd(z, frozen.features(x).detach(), "fixed")
            sgd.zero_grad()
            (F.cross_entropy(net(x, noise[: len(x)]), y) + 5 * away).backward()
            sgd.step()
        row = torch.cat([p.detach().flatten() for p in net.parameters()])
        close(updated.theta[client, : head.stop], row[: head.stop])
        mixed = (row[head] + received.theta[client, extra][-len(row[head]) :]) / 2
        uploads.append(torch.cat([row[: head.start], row[extra][: -len(mixed)], mixed]))
    close(updated.w, (13 * uploads[0] + 4 * uploads[1]) / 17)


def perturbed(fed, method):
    """A state in which no two heads and rows are alike."""
    state, noise = method.init(fed), torch.Generator().manual_seed(0)
    rows = state.theta + 0.1 * torch.randn(state.theta.shape, generator=noise, dtype=fed.dtype)
    return replace(state, theta=rows, w=state.w + 0.1 * torch.randn(state.w.shape, generator=noise, dtype=fed.dtype))


@torch.no_grad()
def set_to(net, fed, row):
    for name, value in fed.flat.views(row).items():
        net.get_parameter(name).copy_(value)
    return net


@engines
def test_tests_get_noise_by_client_and_place(engine):
    method = FedCP()
    fed = federation(engine=engine, around=method.model, tests=(140, 0, 3, 7)).at(2)
    S = torch.arange(4)
    models = method.receive(fed, perturbed(fed, method), S).theta
    scores = fed.evaluate(models, S)
    again = fed.evaluate(models, torch.tensor([2, 3]))
    assert again.loss.tolist() == pytest.approx(scores.loss[1:].tolist())
    quiet = FedCP(test_noise=False)
    without = federation(engine=engine, around=quiet.model, tests=(140, 0, 3, 7)).at(2).evaluate(models, S)
    for place, client in enumerate(scores.clients.tolist()):
        loss, correct = by_hand(fed, models[client], client, noisy=True)
        assert (scores.loss[place], scores.correct[place]) == (pytest.approx(loss), correct)
        assert without.loss[place] == pytest.approx(by_hand(fed, models[client], client, noisy=False)[0])
        assert loss != pytest.approx(without.loss[place])


@torch.no_grad()
def by_hand(fed, row, client, noisy):
    """A client's summed loss and its right predictions."""
    mine = fed.test_indices[client]
    x, y = fed.executor.samples.batch(torch.from_numpy(mine))
    net = set_to(copy.deepcopy(fed.flat.module).double(), fed, row)
    stream = rng.stream(fed.seed, "test noise", fed.t, client)
    logits = net(x, gumbel(stream, len(mine), fed.device, width=net.width) if noisy else None)
    return float(F.cross_entropy(logits, y, reduction="sum")), int((logits.argmax(1) == y).sum())


def test_tests_in_a_pack():
    method = FedCP()

    def make(seed):
        return federation(engine="batched", around=method.model, seed=seed).at(1)

    def work(fed):
        S = torch.arange(fed.size)
        return fed.evaluate(method.receive(fed, perturbed(fed, method), S).theta, S)

    for seed, found in enumerate(in_a_pack([make(0), make(1)], work)):
        expected = work(make(seed))
        assert found.loss == pytest.approx(expected.loss)


def test_noise_is_finite_and_gumbels():
    noise = gumbel(np.random.default_rng(0), 5000, torch.device("cpu"), width=3)
    assert noise.shape == (5000, 2, 3)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.05)

    class Ends:
        def random(self, shape):
            return np.linspace(0, 1, np.prod(shape)).reshape(shape)

    assert gumbel(Ends(), 1, torch.device("cpu"), width=3).float().isfinite().all()
