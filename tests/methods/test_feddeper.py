"""FedDeper (methods.md 1.17): the numbers of the specification, a twin in plain PyTorch, limits and options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.twins import close, near, rows, setup
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from pflbench.contract.small import EXECUTORS, federation, train
from pflbench.contract.toy import q2, rounds
from pflbench.methods.fedavg import FedAvg
from pflbench.methods.feddeper import FedDeper
from pflbench.methods.local import Local

engines = pytest.mark.parametrize("engine", EXECUTORS[:2])


@engines
def test_numbers(engine):
    (_, first), (_, second) = rounds(FedDeper(rho=0.1, lam=0.5), q2(engine, epochs=2), 2)
    near(first.v, [[0.18, 0], [0, 0.36]])
    near(first.x, [0.085, 0.17])
    near(second.v, [[0.2801, 0.085], [0.0425, 0.5602]])
    near(second.x, [0.1547, 0.3094])


def test_a_penalty_that_outweighs_the_gradient_is_noted():
    """A rate so small that the gradient stays what it is: y - x = eta g (J - 2 / rho (1 - e^(-rho J))), uphill if that is > 0."""
    steps = 20
    for rho, uphill in ((0.05, False), (0.06, False), (0.1, True)):
        fed = q2(epochs=steps, lr=1e-5).at(1)
        S, method = fed.cohort(1), FedDeper(rho=rho)
        done = method.update(fed, method.receive(fed, method.init(fed), S), S)
        descended = float(done.x @ torch.tensor([0.5, 1.0]).double()) > 0
        assert descended == (not uphill) == (steps < 2 / rho * (1 - np.exp(-rho * steps)))
        texts = list(fed.ledger.notes.values())
        assert len(texts) == (rho * steps > 1)
        assert all(f"rho x steps = {rho * steps:.3g} is above 1 in round 1, where a client makes 20 steps" in t for t in texts)


@engines
def test_the_models_that_are_mixed_and_uploaded(engine):
    """lambda = 1 makes v the uploaded y."""
    (_, first), (_, second) = rounds(FedDeper(rho=0.1, lam=1), q2(engine, epochs=2), 2)
    near(first.v, [[0.17, 0], [0, 0.34]])
    close(second.v.mean(0), second.x)


@engines
@pytest.mark.parametrize(("model", "aggregation"), [("mlp", "weighted"), ("batchnorm", "uniform")])
def test_twin(model, engine, aggregation):
    """Line 7 as SGD on the surrogate f(y) + rho / (2 eta) |v + y - 2x|^2 of equation 5, by autograd."""
    fed, twin = setup(model, engine)
    rho, lam, eta = 0.2, 0.7, fed.protocol.lr
    state = train(FedDeper(rho=rho, lam=lam, aggregation=aggregation), fed)
    personal = [twin.fresh() for _ in twin.clients]
    for t in range(1, 4):
        now = fed.at(t)
        S = now.cohort(t)
        for i, c in enumerate(S.tolist()):
            y, v = twin.clients[c].train(), personal[c].train()
            twin.load(y, twin.server)
            optimisers = [torch.optim.SGD(m.parameters(), lr=eta) for m in (y, v)]
            for index in now.batches(S).batches(i):
                inputs, labels = twin.data(index)
                for optimiser in optimisers:
                    optimiser.zero_grad()
                triples = zip(v.parameters(), y.parameters(), twin.server.parameters(), strict=True)
                distance = sum((p.detach() + q - 2 * x.detach()).pow(2).sum() for p, q, x in triples)
                (F.cross_entropy(y(inputs), labels) + rho / (2 * eta) * distance).backward()
                F.cross_entropy(v(inputs), labels).backward()
                for optimiser in optimisers:
                    optimiser.step()
            with torch.no_grad():
                for p, q in zip(v.parameters(), y.parameters(), strict=True):
                    p.copy_((1 - lam) * p + lam * q)
        if aggregation == "uniform":
            twin.n = [1] * fed.size
        twin.average([twin.clients[c] for c in S.tolist()], S.tolist())
    close(state.x, parameters_to_vector(twin.server.parameters()).detach())
    close(state.v, rows(personal))
    if model == "batchnorm":
        for which, modules in (("model", twin.clients), ("personal", personal)):
            expected = torch.stack([torch.cat([b.double().reshape(-1) for b in m.buffers()]) for m in modules])
            close(fed.buffers[which], expected)
        assert (fed.buffers["model"] - fed.buffers["personal"]).abs().max() > 1e-3


@engines
@pytest.mark.parametrize("join_ratio", [1.0, 0.5])
def test_without_its_penalty_it_is_fedavg(engine, join_ratio):
    settings = {"engine": engine, "join_ratio": join_ratio}
    close(train(FedDeper(rho=0, aggregation="weighted"), federation(**settings)).x, train(FedAvg(), federation(**settings)).w)
    alike = {**settings, "n": (14, 14, 14, 14)}
    close(train(FedDeper(rho=0), federation(**alike)).x, train(FedAvg(), federation(**alike)).w)


def test_the_first_step_of_the_first_round_is_plain():
    """v = y = x makes v + y - 2x = 0, and v walks alone until it is mixed."""
    one = {"n": (5, 5, 5)}
    fed, method = federation(**one), FedDeper(rho=0.9)
    state = method.update(fed.at(1), method.init(fed), fed.cohort(1))
    alone = Local().update(fed.at(1), Local().init(fed), fed.cohort(1))
    close(state.v, alone.theta)
    close(state.x, alone.theta.mean(0))


def test_the_penalty_holds_uploads_away_from_the_personal_models():
    """With a larger rho the global model moves less towards any client's own solution."""
    moved = [(train(FedDeper(rho=rho), federation()).x - federation().initial()).norm() for rho in (0, 0.1, 0.5)]
    assert moved[0] > moved[1] > moved[2] > 0


def test_personal_models_are_a_series_of_their_own():
    method, fed = FedDeper(), federation()
    state = train(method, fed)
    models, which = method.series(state)["personal"]
    assert models is state.v
    assert which == "personal"
    assert method.deployed(state) is state.x
