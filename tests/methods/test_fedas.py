"""FedAS: the numbers of methods.md 1.32 and its limiting cases."""

from __future__ import annotations

import pytest
import torch
from support.cases import engines
from support.f2 import f2, losses_at_e1
from support.twins import close, near, vector
from torch.nn import functional as F

from pflbench.contract.small import federation, train
from pflbench.contract.toy import EXECUTORS, rounds
from pflbench.methods.fedas import FedAS
from pflbench.methods.fedper import FedPer


@pytest.fixture
def traced(monkeypatch):
    """The traces of the Fisher information that clients sent in each round, [c]."""
    seen, original = [], FedAS.traces

    def traces(self, fed, theta_S, S):
        seen.append(original(self, fed, theta_S, S))
        return seen[-1]

    monkeypatch.setattr(FedAS, "traces", traces)
    return seen


@pytest.mark.parametrize("name", EXECUTORS)
def test_fedas(name, traced):
    method = FedAS()
    (received, first), (_, second) = rounds(method, f2(name, method), 2)
    near(received.start[0, :6], [0.9983101852, 0.4996527778, -0.4986342593, 0.9982638889, 0.249212963, -0.74875])
    near(received.start[1, :6], [0.999375, 0.499375, -0.5002083333, 0.9997916667, 0.2502083333, -0.7497916667])
    near(torch.stack(traced), [(0.3065216692, 0.9500413473), (0.2474954067, 0.5801009016)])
    near(first.base, [0.9770193558, 0.5839094435, -0.5169734643, 0.9988215979, 0.2662493248, -0.7744321683])
    near(second.base, [0.9647992099, 0.6415590126, -0.5386663506, 1.0112632467, 0.282900432, -0.7999682079])
    for evaluate, expected in {"own": (0.4719505075, 0.550404029), "aligned": (0.4759707123, 0.5610652542)}.items():
        tested = FedAS(evaluate=evaluate)
        e1 = torch.tensor(losses_at_e1(tested, f2(name, tested), 2), dtype=torch.float64)
        near(e1[1], expected)


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_without_alignment_and_by_samples_it_is_trained_like_fedper(model, engine):
    method, how = FedAS(align_lr=0, weights="samples"), {"engine": engine, "local_epochs": 2, "join_ratio": 0.75}
    fed, plain = federation(model, around=method.model, **how), federation(model, **how)
    found, expected = train(method, fed), train(FedPer(), plain)
    close(found.base, expected.w, 0)
    close(found.theta[:, plain.flat.head], expected.theta[:, plain.flat.head], 0)
    for which, rows in plain.buffers.items():
        close(fed.buffers[which], rows, 0)


@engines
def test_alignment_and_traces_beside_plain_pytorch(engine, traced):
    """Over several batches, from a base that is not the client's own."""
    method, n = FedAS(align_lr=0.2, align_epochs=2, align_batch=4), (13, 3, 9)
    fed = federation(engine=engine, n=n, around=method.model)
    S, first = torch.arange(len(n)), train(method, fed, 1)
    now = fed.at(2)
    received = method.receive(now, first, S)
    trained = method.update(now, received, S)
    align, fisher = now.batches(S, 2, purpose="batches/align", batch_size=4), now.batches(S, 1, purpose="batches/fisher")
    samples, module = federation(n=n).executor.samples, federation(n=n).flat.module.double()
    base = range(fed.flat.head.start)

    def load(row):
        torch.nn.utils.vector_to_parameters(row[: fed.flat.head.stop].clone(), module.parameters())

    for i in range(len(n)):
        load(first.theta[i])
        x, y = samples.batch(torch.from_numpy(fed.train_indices[i]))
        means = {k: module.features(x[y == k]).mean(0).detach() for k in y.unique().tolist()}
        load(torch.cat([first.base, first.theta[i, len(base) :]]))
        optimizer = torch.optim.SGD([p for name, p in module.named_parameters() if not name.startswith("output")], lr=0.2)
        for index in align.batches(i):
            x, y = samples.batch(torch.from_numpy(index))
            optimizer.zero_grad()
            of_class = {k: module.features(x[y == k]) for k in y.unique().tolist()}
            sum((z - means[k]).square().mean() for k, z in of_class.items()).backward()
            optimizer.step()
        close(received.start[i, : fed.flat.head.stop], vector(module))
        load(trained.theta[i])
        total = 0.0
        for index in fisher.batches(i):
            x, y = samples.batch(torch.from_numpy(index))
            total += sum(g.square().sum() for g in torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters())))
        close(traced[-1][i], total)
    close(trained.base, (traced[-1] / traced[-1].sum()) @ trained.theta[:, : len(base)])


@engines
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_the_alignment_is_plain_sgd(engine, optimizer):
    method, found = FedAS(), []
    for other in ({}, {"optimizer": optimizer, "weight_decay": 0.1}):
        fed = federation(engine=engine, around=method.model, **other)
        found.append(method.receive(fed.at(1), method.init(fed), fed.cohort(1)).start)
    close(*found, 0)
    assert (found[0] != method.init(fed).start).any()


def test_clients_weigh_by_samples_where_nothing_is_learned(monkeypatch):
    fed = federation(around=FedAS().model)
    monkeypatch.setattr(FedAS, "traces", lambda self, fed, theta_S, S: theta_S.new_zeros(len(S)))
    close(train(FedAS(), fed).base, train(FedAS(weights="samples"), fed).base, 0)


def test_the_model_as_trained_last_is_tested():
    """BatchNorm's statistics are those after that training, too: the alignment leaves none."""
    method = FedAS(align_lr=0.5, align_epochs=3)
    fed = federation("batchnorm", around=method.model, join_ratio=0.5)
    before = train(method, fed, 2)
    everyone, kept = torch.arange(fed.size), fed.buffers_of("model").clone()
    tested = fed.evaluate(method.deployed(before), everyone)
    after = method.receive(fed.at(4), before, everyone)
    assert torch.equal(fed.buffers_of("model"), kept)
    assert fed.evaluate(method.deployed(after), everyone).loss.tolist() == tested.loss.tolist()
    assert not torch.equal(after.start, before.start)
