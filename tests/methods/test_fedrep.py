"""FedRep (methods.md 1.6): the numbers of the specification, a twin in plain PyTorch, limits, and with ALA."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.cases import engines
from support.spies import on_call
from support.twins import ROUNDS, buffers, close, near, rows, setup
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from pflbench import methods
from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.contract.toy import by_hand, rounds
from pflbench.engine import requests
from pflbench.engine.federation import Federation
from pflbench.engine.flat import Flat
from pflbench.errors import UserError
from pflbench.methods.fedrep import FedRep
from pflbench.spec import MethodSpec


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.b.expand_as(x), x], dim=-1)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        return self.h * features[..., :1] - features[..., 1:]


class Product(nn.Module):
    """Output b * h - x: the scalar model of the specification, whose samples are its targets."""

    head = "upper"
    blocks = (("upper",), ("lower",))

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = Base(), Head()

    def features(self, x: Tensor) -> Tensor:
        return self.lower(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.features(x))


def scalar(name: str, n=(30, 10), targets=(3.0, -1.0)) -> Federation:
    return by_hand(Product(), np.repeat(targets, n)[:, None], n, name)


@engines
def test_numbers(engine):
    fed, method = scalar(engine), FedRep(tau=2)
    (received_1, first), (received_2, second) = rounds(method, fed, 2)
    near(received_1.theta.prod(dim=1), [1, 1])
    near(first.theta[:, 1], [1.38, 0.62])
    near(first.theta[:, 0], [1.22356, 0.89956])
    near(first.w, [1.14256])
    near(received_2.theta.prod(dim=1), [1.5767328, 0.7083872])
    near(second.theta[:, 1], [1.6840049301, 0.2550944283])
    near(second.theta[:, 0], [1.3237460187, 1.1096155574])
    near(second.w, [1.2702134034])
    scores = fed.evaluate(method.deployed(received_2), fed.cohort(2))
    assert scores.loss == pytest.approx([30 * (1.5767328 - 3) ** 2 / 2, 10 * (0.7083872 + 1) ** 2 / 2], abs=1e-7)


@engines
def test_a_uniform_mean(engine):
    ((_, first),) = rounds(FedRep(tau=2, aggregation="uniform"), scalar(engine), 1)
    near(first.w, [(1.22356 + 0.89956) / 2])


def alternate(twin, module, phases):
    """Each phase: the parameters it trains, and its batches; the others are frozen, BatchNorm stays in training mode."""
    module.train()
    for parameters, batches in phases:
        for p in module.parameters():
            p.requires_grad_(False)
        for p in parameters:
            p.requires_grad_(True)
        optimiser = torch.optim.SGD(parameters, lr=twin.fed.protocol.lr)
        for index in batches:
            x, y = twin.data(index)
            optimiser.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimiser.step()


def parts(module):
    """Base and head."""
    head = list(getattr(module, module.head).parameters())
    return [p for p in module.parameters() if all(p is not h for h in head)], head


def copy_base(source, target):
    with torch.no_grad():
        for p, q in zip(parts(target)[0], parts(source)[0], strict=True):
            p.copy_(q)


@engines
@pytest.mark.parametrize("model", ["mlp", "batchnorm", "cnn"])
def test_twin(model, engine):
    fed, twin = setup(model, engine)
    state = train(FedRep(tau=3), fed, ROUNDS)
    for now, S in twin.rounds(ROUNDS):
        head_plan, base_plan = now.batches(S, 3, purpose="batches/head"), now.batches(S)
        for i, c in enumerate(S.tolist()):
            base, head = parts(twin.clients[c])
            copy_base(twin.server, twin.clients[c])
            alternate(twin, twin.clients[c], [(head, head_plan.batches(i)), (base, base_plan.batches(i))])
        twin.average(S)
    close(state.w, parameters_to_vector(parts(twin.server)[0]).detach())
    for c in fed.cohort(ROUNDS + 1).tolist():
        copy_base(twin.server, twin.clients[c])
    close(state.theta, rows(twin.clients))
    close(fed.buffers_of("model"), buffers(twin.clients))


@pytest.mark.parametrize("engine", [*EXECUTORS[:2], *(pytest.param(e, marks=pytest.mark.slow) for e in EXECUTORS[2:])])
@pytest.mark.parametrize(("model", "drop_last"), [("mlp", "auto"), ("cnn", "always"), ("fasttext", "always"), ("mlp", "never")])
def test_running_the_frozen_base_once_changes_nothing(model, drop_last, engine, monkeypatch):
    """Clients without a step among them; with has_features off, heads are trained through the whole model."""
    settings = {"n": (13, 4, 1, 22), "drop_last": drop_last}
    quick = federation(model, engine, **settings)
    asked = []
    on_call(monkeypatch, quick.executor, "do", asked.append)
    a = train(FedRep(), quick, 2)
    assert sum(isinstance(request, requests.ExtractFeatures) for request in asked) == 2, "once a round"
    monkeypatch.setattr(Flat, "has_features", False)
    whole = federation(model, engine, **settings)
    close(a.theta, train(FedRep(), whole, 2).theta)


def test_every_sample_once():
    plan = federation(n=(13, 1, 7)).at(1).batches(torch.arange(3), 4, drop_last="never")
    samples, positions = plan.once(5)
    assert [s.tolist() for s in samples.sizes] == [[5, 5, 3], [1], [5, 2]]
    for mine, order in zip(samples.order, plan.order, strict=True):
        assert mine.tolist() == sorted(set(order.tolist()))
    stored = np.concatenate(samples.order)
    for before, after in zip(plan.order, positions.order, strict=True):
        assert stored[after].tolist() == before.tolist()
    assert positions.sizes == plan.sizes


def test_a_model_that_is_a_head_alone_is_refused():
    with pytest.raises(UserError, match="below the head"):
        FedRep().init(federation("logreg"))


@engines
def test_with_ala(engine):
    """The scalar model in round 2, one weight step: the base is the only block that is mixed, the own head stays."""
    fed = scalar(engine)
    method = methods.make(MethodSpec(name="fedrep+ala", hyperparameters={"tau": 2, "s": 100, "max_init_epochs": 1}))
    _, (received, second) = rounds(method, fed, 2)
    uploads = []
    for i, (own, h, c) in enumerate(((1.22356, 1.38, 3.0), (0.89956, 0.62, -1.0))):
        difference = 1.14256 - own
        W = 1 - (1.14256 * h - c) * h * difference
        b = own + difference * W
        near(received.ala.W[i], [W])
        near(received.base.theta[i], [b, h])
        for _ in range(2):
            h -= 0.1 * (b * h - c) * b
        uploads.append(b - 0.1 * (b * h - c) * h)
        near(second.base.theta[i], [uploads[i], h])
    near(second.base.w, [0.75 * uploads[0] + 0.25 * uploads[1]])


def test_ala_s_range_counts_blocks_of_the_base():
    fed = federation()
    method = methods.make(MethodSpec(name="fedrep+ala"))
    assert method.init(fed).ala.W.shape == (fed.size, fed.flat.blocks[1].stop - fed.flat.blocks[1].start)
    with pytest.raises(UserError, match="p = 2"):
        dataclasses.replace(method, ala=dataclasses.replace(method.ala, p=2)).init(fed)
